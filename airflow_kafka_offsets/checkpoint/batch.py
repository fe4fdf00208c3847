"""
The start and end offsets of one batch of a query.

The end offsets are in ``offsets/<batch>``. The start offsets are in the previous file in ``offsets/``, whose
number may be any lower one. A source's first batch starts at ``sources/<source>/0``: Spark's Kafka source
writes this file once, so it lacks partitions that were added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.guards import unfinished_refusals
from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry, format_error, kafka_offsets
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.formats import SPARK_FORM
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.text import describe_type
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.storage import decode

_INITIAL = b"\0v1\n"
"""Prefix of ``sources/<source>/0`` of Spark's Kafka source; the zero byte is for Spark 2.1 (SPARK-19517)."""


def batch_bounds(
    checkpoint: SparkCheckpoint, batch_id: int, source: str | None = None
) -> dict[str, tuple[Offsets, Offsets]]:
    """
    Return the Kafka sources of a batch: source -> its start and end offsets.

    The start offsets are without partitions that were added in this batch. Both are empty for a source whose
    pattern matches no topic yet.

    :param source: the only source to return.
    :raises CheckpointError: if the batch is not planned, or its start offsets are unknown or no longer kept.
    :raises UsageError: if there is no such source.
    """
    ends = _kafka_sources(checkpoint.entry(batch_id))
    before = batch_id - 1
    if batch_id > 0 and not checkpoint.has("offsets", before):
        # Batch numbers may have gaps.
        before = max((number for number in checkpoint.batches("offsets") if number < batch_id), default=-1)
        if before < 0:
            raise CheckpointError(
                f"{checkpoint.name(f'offsets/{batch_id}')}: the batch before it no longer exists, so its "
                "start offsets are unknown; expected the batch that is running now: Spark removes older "
                "batches (spark.sql.streaming.minBatchesToRetain)"
            )
    starts = _kafka_sources(checkpoint.entry(before)) if before >= 0 else {}
    wanted = ends if source is None else ends.keys() & {source}
    if not wanted:
        kind = "a Kafka source" if source is None else f"a Kafka source {source}"
        raise UsageError(
            f"{checkpoint.location}: batch {batch_id} has no offsets of {kind}; its Kafka sources: "
            f"{', '.join(sorted(ends)) or 'none'}"
        )
    begun = {name for name in wanted if ends[name] and name not in starts}
    earlier = begun and before > 0 and checkpoint.has("offsets", before - 1)
    # A query starts at the offsets of the two newest batches, but runs a batch again from those of one batch.
    if earlier and (returned := begun & checkpoint.entry(before - 1).kafka_offsets.keys()):
        raise CheckpointError(
            f"{checkpoint.location}: only batch {before} was without source {', '.join(sorted(returned))}, "
            f"so its start in batch {batch_id} is not known: Spark continues where the source was, but if "
            "the batch runs again, at the first offsets of the source; run the query without the source, "
            "then add it under another name"
        )
    starts |= {name: _first_offsets(checkpoint, name) for name in begun}
    return {name: (starts.get(name, {}), ends[name]) for name in wanted}


def first_offsets(checkpoint: SparkCheckpoint, sources: Iterable[str]) -> Offsets:
    """
    Return where a query began to read each partition, without partitions that were added later.

    If several sources read a partition, the lowest offset counts.
    """
    found: dict[TopicPartition, int] = {}
    for source in sources:
        for tp, offset in _first_offsets(checkpoint, source).items():
            found[tp] = min(offset, found.get(tp, offset))
    return found


def _first_offsets(checkpoint: SparkCheckpoint, source: str) -> Offsets:
    path = f"sources/{source}/0"
    name, data = checkpoint.name(path), checkpoint.read_file(path)
    if data is None:
        raise CheckpointError(
            f"{name}: does not exist; expected the start offsets of source {source}, which Spark writes "
            "before the source's first batch. They cannot be matched if the query uses a frame twice, or has "
            "named sources without spark.sql.streaming.offsetLog.formatVersion=2"
        )
    if not data.startswith(_INITIAL):
        expected = "a zero byte, v1 and the first offsets, as Spark's Kafka source writes them"
        raise format_error(name, "other bytes", expected)
    text = decode(data[len(_INITIAL) :], name)
    offsets = {} if _is_empty(text) else kafka_offsets(text, name)
    if offsets is None:
        raise format_error(name, describe_type(text), SPARK_FORM)
    return offsets


def finished_batch_ends(checkpoint: SparkCheckpoint, batch_id: int) -> dict[str, Offsets]:
    """Return the end offsets of each source of a batch; refuse one that is unfinished or no longer kept."""
    refusals = unfinished_refusals(checkpoint.read_finished(), batch_id)
    refusals += ArchivedMoves(checkpoint).failover_refusals(batch_id)
    PlanRefusedError.raise_if(refusals)
    return checkpoint.entry(batch_id).kafka_offsets


def source_offsets_at_batch(
    batch_id: int, ends: Mapping[str, Offsets], newest: Mapping[str, Offsets], scope: TopicScope
) -> dict[str, Offsets]:
    """
    Return the offsets that the newest batch's partitions had at the end of an earlier batch.

    :param ends: source -> end offsets of the earlier batch. Partitions that only this batch has are ignored.
    :param newest: source -> end offsets of the newest batch. Partitions outside the scope keep these.
    :raises PlanRefusedError: if a partition of the scope was added after the earlier batch.
    """
    added = {
        tp
        for source, offsets in newest.items()
        for tp in offsets
        if tp in scope and tp not in ends.get(source, {})
    }
    if added:
        raise PlanRefusedError(
            f"batch {batch_id} has no offset for {summarize(added)}, because the query reads it only since a "
            f"later batch: leave it out with {parameter_text('topics', ...)}, or give a later batch"
        )
    return {
        source: {tp: ends[source][tp] if tp in scope else offset for tp, offset in offsets.items()}
        for source, offsets in newest.items()
    }


def _kafka_sources(entry: OffsetLogEntry) -> dict[str, Offsets]:
    """Return the offsets of each source that may be Kafka, without sources that had no offset yet."""
    empty: dict[str, Offsets] = {name: {} for name, text in entry.sources.items() if text and _is_empty(text)}
    return empty | entry.kafka_offsets


def _is_empty(text: str) -> bool:
    # The Kafka source writes this while its pattern matches no topic.
    return text.strip() == "{}"
