"""
Returns the offset ranges of the batch that a ``foreachBatch`` function is working on.

Spark plans the ranges before it calls the function: from the end of the previous batch to
``offsets/<batch>``. The offsets of the rows do not show the ranges: a partition may have no rows, and a range
may begin or end with transaction markers or compacted records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.annotation_types import SparkSession
from airflow_kafka_offsets.checkpoint.batch import batch_bounds
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, UsageError
from airflow_kafka_offsets.model.offsets import OffsetRange, OffsetRanges, Offsets, summarize
from airflow_kafka_offsets.spark.broker import fails_on_data_loss, open_broker_client


def batch_ranges(
    checkpoint: str | SparkCheckpoint,
    batch_id: int,
    *,
    source: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    client_config: Mapping[str, Any] | None = None,
) -> OffsetRanges:
    """
    Return the exact range of each partition in a batch.

    Call it in ``foreachBatch``, with the id that Spark passes: after a failure Spark runs the same batch with
    the same ranges again. In real-time mode (Spark 4.2) a running batch is not known.

    A partition that was added with this batch starts at 0; Spark fails for any other start. With
    ``failOnDataLoss=false`` Spark starts at the log start, which this function must read too: give
    ``options``.

    :param checkpoint: the query's ``checkpointLocation``.
    :param batch_id: a batch in ``offsets/``; the batch before it must be there too.
    :param source: index or name of a Kafka source; default: all of them.
    :param options: options of Spark's Kafka source; needed if ``failOnDataLoss`` is false.
    :param spark: the session, to read log starts with its Kafka client.
    :param client_config: librdkafka's settings, to read log starts with confluent-kafka.
    :return: the range of each partition in the batch; empty for a partition without new records.
    :raises CheckpointError: if the batch is not planned, or its start is not known or no longer in the
        checkpoint.
    :raises UsageError: if there is no such Kafka source, or several read the same partition.
    """
    if isinstance(checkpoint, str):
        checkpoint = SparkCheckpoint(checkpoint)
    bounds = batch_bounds(checkpoint, batch_id, None if source is None else str(source))
    begin: Offsets = {}
    end: Offsets = {}
    for starts, ends in bounds.values():
        if again := end.keys() & ends.keys():
            raise UsageError(
                f"{checkpoint.location}: several sources of batch {batch_id} read {summarize(again)}, each "
                f"its own range: name one with source= (there are {', '.join(sorted(bounds))})"
            )
        begin |= starts
        end |= ends
    added = end.keys() - begin.keys()
    if added and not fails_on_data_loss(options or {}):
        with open_broker_client(options or {}, spark=spark, client_config=client_config) as kafka:
            begin.update({tp: min(logged.start, end[tp]) for tp, logged in kafka.log_ranges(added).items()})
    ranges = {tp: OffsetRange(begin.get(tp, 0), end[tp]) for tp in sorted(end)}
    if backwards := [tp for tp, offsets in ranges.items() if offsets.end < offsets.start]:
        first = backwards[0]
        raise CheckpointError(
            f"{checkpoint.location}: batch {batch_id} ends before it begins on {summarize(backwards)} "
            f"({first}: {ranges[first].start} to {ranges[first].end}): the topic was recreated, or an "
            "unclean leader election has cut off its log, and Spark reads no records of it; stop the query "
            "and move its checkpoint (ResetOffsetsOperator)"
        )
    return ranges
