"""Search for lost records among the offsets without a row, by reading only these ranges from Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_kafka_offsets.errors import UnknownTopicPartitionError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.certificate import MissingOffsets, Reason
from airflow_kafka_offsets.model.offset_ranges import (
    RangesByPartition,
    clip,
    count_offsets,
    intersect,
    merge_each,
)
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals

log = logging.getLogger(__name__)


Found = tuple[RangesByPartition, RangesByPartition]
"""Offsets that have a record, and offsets that were not read."""


def find_missing(
    client: PositionsReader,
    window: OffsetWindow,
    missing: RangesByPartition,
    read: Callable[[RangesByPartition], Found],
) -> MissingOffsets:
    """
    Separate lost records from transaction markers, aborted records and compaction.

    Kafka does not report why an offset has no record. The reason is not needed: a consumer of committed
    records gets no record at such an offset. Records that retention has deleted, and records of open
    transactions, cannot be distinguished from lost ones.

    :param missing: the offsets of the window without a row.
    """
    elsewhere = current_logs_refusals(client, "the window", window.log_ids, remedy="plan a new window")
    try:
        logs = {} if elsewhere else client.log_ranges(missing)
    except UnknownTopicPartitionError as error:
        elsewhere = [str(error)]
    if elsewhere:
        return MissingOffsets(undecided={"other_log": missing}, problems=elsewhere)
    stable = client.log_ranges(missing, isolation_level="read_committed")
    undecided: dict[Reason, RangesByPartition] = {
        "other_log": _clip_each(missing, lambda tp: (logs[tp].end, window.end[tp])),
        "open_transaction": _clip_each(missing, lambda tp: (stable[tp].end, logs[tp].end)),
    }
    readable = _clip_each(missing, lambda tp: (logs[tp].start, stable[tp].end))
    log.info("Reading %s offsets without a row from Kafka", f"{count_offsets(readable):,}")
    records, unread = read(readable) if readable else ({}, {})
    # Retention may have deleted records during the read.
    starts = {tp: each.start for tp, each in client.log_ranges(missing).items()}
    gone = {
        tp: [*clip(ranges, 0, logs[tp].start), *clip(unread.get(tp, ()), 0, starts[tp])]
        for tp, ranges in missing.items()
    }
    undecided["retention"] = merge_each(gone)
    undecided["not_read"] = _clip_each(unread, lambda tp: (starts[tp], window.end[tp]))
    # A read may return records around the missing offsets.
    lost = {tp: intersect(ranges, records.get(tp, ())) for tp, ranges in missing.items()}
    return MissingOffsets(merge_each(lost), undecided)


def _clip_each(
    ranges: RangesByPartition, bounds: Callable[[TopicPartition], tuple[int, int]]
) -> RangesByPartition:
    """Return the offsets within bounds, without partitions that have none."""
    return merge_each({tp: clip(each, *bounds(tp)) for tp, each in ranges.items()})
