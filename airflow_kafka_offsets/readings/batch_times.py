"""Compares the times of batches and records: a batch has not read a log whose records are newer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_kafka_offsets.annotation_types import OffsetsClient, OffsetsReader
from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.topic_times import now_ms, refuse_unread_times

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry

log = logging.getLogger(__name__)


_CLOCKS = 1_000
"""Accepted difference, in milliseconds, between the clocks of the producer and of Spark's driver."""


def newer_record_refusals(
    client: OffsetsClient, offsets: Offsets, read_at: int, *, whole_logs_only: bool = False
) -> list[str]:
    """Return why a batch cannot have read these logs up to its end offsets, see :func:`newer_records`."""
    newer = newer_records(client, offsets, read_at, whole_logs_only=whole_logs_only)
    if not newer:
        return []
    whole = [tp for tp, at in newer.items() if at is None]
    if whole:
        found = f"the first record of {summarize(whole)}"
    else:
        found = f"the record before the offset on {summarize(newer)} (of {iso_time(newer[min(newer)] or 0)})"
    return [
        f"{found} is newer than the batch of {iso_time(read_at)} that has read up to offset "
        f"{offsets[min(whole or newer)]}: the topic was deleted and created again, or the connection leads "
        "to another cluster; correct the connection, or start the query with a new checkpoint. If producers "
        "set other times than the time of writing, the query is in real-time mode (its batches also read "
        "what comes after their start), or the offsets are right here, set "
        f"{parameter_text('allow_new_cluster', True)} once"
    ]


def newer_records(
    client: OffsetsReader, offsets: Offsets, read_at: int, *, whole_logs_only: bool = False
) -> dict[TopicPartition, int | None]:
    """
    Return the partitions whose current log a batch cannot have read: its records are newer than the batch.

    The proof is that all records of the log, or the record before the offset, are newer than the batch.
    Without these records (retention), or if their timestamps are in the future, nothing is proven.

    :param whole_logs_only: whether only all records are a proof: in real-time mode, or with a producer's
        clock that is ahead, the last record of each batch is newer than the batch.
    :return: partition -> timestamp of the record before the offset; ``None`` if all records are newer.
    """
    since, now = read_at + _CLOCKS, now_ms() + _CLOCKS
    later = _first_later(client, offsets, since)
    single = {tp: offsets[tp] for tp, first in later.items() if first and not whole_logs_only}
    times = _times_before(client, single)
    newer: dict[TopicPartition, int | None] = {tp: at for tp, at in times.items() if since <= at <= now}
    return newer | dict.fromkeys(_newer_logs(client, later, now))


def recreated_since(
    client: PositionsReader,
    batches: Iterable[OffsetLogEntry],
    positions: Collection[TopicPartition],
    unconfirmed: Offsets,
) -> list[TopicPartition]:
    """
    Return the partitions that were created again after a batch had read them.

    The proof is that all records of the log are newer than the first batch that had read some.

    :param batches: Spark's plans of batches, oldest first.
    :param unconfirmed: the positions that no commit confirms. A confirmed one shows that its topic is the
        same; one at 0 has skipped no record.
    """
    confirmed = {tp.topic for tp in positions if tp not in unconfirmed}
    wanted = {tp for tp, at in unconfirmed.items() if at and tp.topic not in confirmed}
    found = list[TopicPartition]()
    for batch in batches:
        if not wanted:
            break
        ends = [each for offsets in batch.kafka_offsets.values() for each in offsets.items()]
        read = {tp: offset for tp, offset in ends if tp in wanted and offset > 0}
        wanted -= read.keys()
        if batch.batch_timestamp_ms is not None:
            later = _first_later(client, read, batch.batch_timestamp_ms + _CLOCKS)
            found += _newer_logs(client, later, now_ms() + _CLOCKS)
    return found


def _first_later(client: PositionsReader, offsets: Offsets, since: int) -> dict[TopicPartition, int]:
    """Return the first offset since a time in each partition, if it is before a given offset."""
    read = sorted(tp for tp, offset in offsets.items() if offset > 0)
    later = client.offsets_for_time(read, since) if read else {}
    return {tp: first for tp, first in later.items() if first is not None and first < offsets[tp]}


def _newer_logs(
    client: PositionsReader, later: Mapping[TopicPartition, int], now: int
) -> list[TopicPartition]:
    whole = [tp for tp, first in later.items() if first == 0]
    ahead = client.offsets_for_time(whole, now) if whole else {}
    return [tp for tp in whole if ahead[tp] != 0]


def _times_before(client: OffsetsReader, offsets: Offsets) -> dict[TopicPartition, int]:
    """Return the timestamps of the records right before offsets, as far as there are such records."""
    if not offsets:
        return {}
    try:
        before = client.record_times({tp: offset - 1 for tp, offset in offsets.items()})
        # Without a record right before it (a marker, compaction), this is a later record's timestamp.
        after = client.record_times(offsets)
    except BrokerError as error:
        log.warning("Could not check whether the batch has read these logs: %s", error)
        return {}
    refuse_unread_times(offsets.keys() - (before.keys() & after.keys()))
    return {tp: at for tp, at in before.items() if at is not None and at != after[tp]}
