"""The command ``checkpoint history``: a table of a checkpoint's batches, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.cli.connections import checkpoint_argument
from airflow_kafka_offsets.cli.execution import print_result
from airflow_kafka_offsets.cli.options import StrictCommand, output_option
from airflow_kafka_offsets.model.parameters import iso_time, timestamp_ms
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import escape_controls

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.history import PastBatch


@click.command("history", cls=StrictCommand)
@checkpoint_argument
@click.option("--last", type=click.IntRange(1), default=100, show_default=True, help="Maximum batches.")
@output_option
def history(checkpoint: SparkCheckpoint, last: int, output: str) -> None:
    """Show the batches that the checkpoint at URI has, newest last."""
    from airflow_kafka_offsets.checkpoint.history import read_history

    query_id, found, _ = read_history(checkpoint, last)
    totals = _totals(found)
    value = {
        "version": 1,
        "location": checkpoint.location,
        "query_id": query_id,
        "batches": [batch.as_json() for batch in found],
        "totals": totals,
    }
    lines = [f"query    {escape_controls(query_id)}", *table(found), _total(totals)]
    print_result(output, value, lines)


def _totals(found: Sequence[PastBatch]) -> dict[str, Any]:
    """Return the totals of the finished batches, and how many batches each total includes."""
    found = [batch for batch in found if not (batch.pending or batch.skipped)]
    records = [batch.records for batch in found if batch.records is not None]
    durations = [batch.duration for batch in found if batch.duration is not None]
    return {
        "batches": len(found),
        "records": sum(records) if records else None,
        "records_of": len(records),
        "duration": round(sum(durations), 3) if durations else None,
        "duration_of": len(durations),
    }


def _total(totals: Mapping[str, Any]) -> str:
    known = [
        f"{_cell(totals[name])} {unit} (in {totals[f'{name}_of']})"
        for name, unit in (("records", "records"), ("duration", "s"))
        if totals[name] is not None
    ]
    return f"{totals['batches']} finished batches: {', '.join(known) or 'nothing is known'}"


def table(found: Sequence[PastBatch]) -> list[str]:
    """Return a row for each topic of each batch; end offsets are sums over all partitions."""
    rows = [("BATCH", "PLANNED", "SECONDS", "SOURCE", "TOPIC", "RECORDS", "END-OFFSETS", "NOTE")]
    for batch in found:
        at = "-" if batch.at is None else iso_time(timestamp_ms(batch.at))
        lead = (str(batch.batch), at, _cell(batch.duration))
        gap = batch.previous is not None and batch.previous + 1 < batch.batch
        note = "; ".join([*([f"with those after {batch.previous}"] if gap else []), *_notes(batch)])
        for source, offsets in batch.offsets.items():
            for topic in sorted({tp.topic for tp in offsets}):
                records = batch.read.get(source, {}).get(topic)
                end = sum(offset for tp, offset in offsets.items() if tp.topic == topic)
                rows.append((*lead, source, topic, _cell(records), str(end), note))
        if not batch.offsets:
            rows.append((*lead, "-", "(no Kafka offsets)", "-", "-", note))
    return align_rows(rows)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _notes(batch: PastBatch) -> list[str]:
    return [
        *(["pending"] if batch.pending else []),
        *(["not finished, and skipped"] if batch.skipped else []),
        *([f"then moved in {batch.moved_in}"] if batch.moved_in else []),
    ]
