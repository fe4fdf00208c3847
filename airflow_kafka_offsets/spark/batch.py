"""
Which records are in the batch that a ``foreachBatch`` function is working on?

Spark has planned them before it calls the function: from the end of the batch before, to what ``offsets/<batch>``
says. The smallest and the largest offset of the rows say something else: a partition may have no rows, and the ends
of a range may be markers of transactions or records that compaction has removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import CheckpointError, UsageError
from airflow_kafka_offsets.model.offsets import (
    OffsetRange,
    OffsetRanges,
    Offsets,
    summarize,
)
from airflow_kafka_offsets.spark.broker import broker
from airflow_kafka_offsets.spark.source_options import fails_on_data_loss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


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

    Call it in ``foreachBatch``, with the id that Spark gives: after a failure Spark runs the same batch with the same
    ranges again. In real-time mode (Spark 4.2) a batch is not known while it runs.

    A partition that was added with this batch starts at 0, as Spark fails anywhere else. With
    ``failOnDataLoss=false`` Spark takes the partition's log start, and so it is asked for here: give ``options``.

    :param checkpoint: the query's ``checkpointLocation``.
    :param batch_id: a batch that is in ``offsets/``, as is the one before it.
    :param source: index or name of a Kafka source; default: all of them.
    :param options: those of Spark's Kafka source. They matter where ``failOnDataLoss`` is false.
    :param spark: the session, so that its own Kafka client can be used to ask for log starts.
    :param client_config: librdkafka's settings to ask for log starts with.
    :return: a range for each partition in the batch, an empty one where nothing is new.
    :raises CheckpointError: if the batch is not planned, or where it begins is not kept any more.
    :raises UsageError: if there is no such Kafka source, or several read the same partition.
    """
    from airflow_kafka_offsets.checkpoint.batch import CheckpointBatch
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

    if isinstance(checkpoint, str):
        checkpoint = SparkCheckpoint(checkpoint)
    batch = CheckpointBatch(checkpoint, batch_id)
    begin: Offsets = {}
    end: Offsets = {}
    for name in batch.kafka_sources(None if source is None else str(source)):
        if again := end.keys() & batch.ends[name].keys():
            raise UsageError(
                f"{checkpoint.location}: several sources of batch {batch_id} read {summarize(again)}, each its own range: "
                f"name one with source= (there are {', '.join(sorted(batch.ends))})"
            )
        begin.update(batch.begin(name))
        end.update(batch.ends[name])
    added = end.keys() - begin.keys()
    if added and not fails_on_data_loss(options or {}):
        with broker(options or {}, spark=spark, client_config=client_config) as kafka:
            begin.update({tp: min(logged.start, end[tp]) for tp, logged in kafka.log_ranges(added).items()})
    ranges = {tp: OffsetRange(begin.get(tp, 0), end[tp]) for tp in sorted(end)}
    if backwards := [tp for tp, offsets in ranges.items() if offsets.end < offsets.start]:
        first = backwards[0]
        raise CheckpointError(
            f"{checkpoint.location}: batch {batch_id} ends before it begins on {summarize(backwards)} ({first}: "
            f"{ranges[first].start} to {ranges[first].end}): the topic was made anew, and Spark reads nothing of it; stop the "
            "query and move its checkpoint (ResetOffsetsOperator)"
        )
    return ranges
