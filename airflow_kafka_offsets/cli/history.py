"""The command ``checkpoint history``: a table of a checkpoint's batches, JSON, or a text chart."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.cli.connections import checkpoint_argument
from airflow_kafka_offsets.cli.execution import print_result
from airflow_kafka_offsets.cli.options import StrictCommand, output_option
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.parameters import iso_time, timestamp_ms
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import escape_controls

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.history import PastBatch

_EIGHTHS = "▏▎▍▌▋▊▉█"
_WIDEST = 40
"""Maximum number of characters of a bar: longer bars are not easier to compare."""


@click.command("history", cls=StrictCommand)
@checkpoint_argument
@click.option("--last", type=click.IntRange(1), default=100, show_default=True, help="Maximum batches.")
@click.option("--plot", is_flag=True, help="Draw the records and seconds of each batch as text bars.")
@output_option
def history(checkpoint: SparkCheckpoint, last: int, output: str, *, plot: bool) -> None:
    """Show the batches that the checkpoint at URI has, newest last."""
    from airflow_kafka_offsets.checkpoint.history import read_history

    if plot and output == "json":
        raise UsageError("--plot draws text, and --output json is for programs: give only one")
    query_id, found, _ = read_history(checkpoint, last)
    totals = _totals(found)
    value = {
        "version": 1,
        "location": checkpoint.location,
        "query_id": query_id,
        "batches": [batch.as_json() for batch in found],
        "totals": totals,
    }
    body = (
        chart(found, shutil.get_terminal_size().columns, _drawn(sys.stdout.encoding))
        if plot
        else table(found)
    )
    print_result(output, value, [f"query    {escape_controls(query_id)}", *body, _total(totals)])


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


def chart(found: Sequence[PastBatch], columns: int, bar: Callable[[float, int], str]) -> list[str]:
    """
    Return a line for each batch, with a bar for its records and one for its seconds.

    :param columns: the terminal's width, which the lines do not exceed if it is 40 or more.
    :param bar: draws a share from 0 to 1 as a bar of the given width.
    """
    cells = [(str(batch.batch), _cell(batch.records), _cell(batch.duration)) for batch in found]
    rows = [("BATCH", "RECORDS", "SECONDS"), *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(1, min(_WIDEST, (columns - sum(widths) - 6) // 2))
    most = max((batch.records or 0 for batch in found), default=0)
    longest = max((batch.duration or 0 for batch in found), default=0)
    lines = []
    for row, batch in zip(rows, [None, *found], strict=True):
        number, records, seconds = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        records_bar = bar(batch.records / most, room) if batch and batch.records else ""
        seconds_bar = bar(batch.duration / longest, room) if batch and batch.duration else ""
        lines.append(f"{number}  {records} {records_bar:<{room}}  {seconds} {seconds_bar}".rstrip())
        lines += [f"       {note}" for note in (_notes(batch) if batch else ())]
    return lines


def bar_of_blocks(share: float, width: int) -> str:
    """Return a bar, exact to an eighth of a character; a share above 0 is always visible."""
    eighths = max(1, round(share * width * 8))
    return _EIGHTHS[-1] * (eighths // 8) + _EIGHTHS[: eighths % 8][-1:]


def _drawn(encoding: str | None) -> Callable[[float, int], str]:
    """Return a function that draws a bar in the output's encoding."""
    try:
        _EIGHTHS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return lambda share, width: "#" * max(1, round(share * width))
    return bar_of_blocks


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
