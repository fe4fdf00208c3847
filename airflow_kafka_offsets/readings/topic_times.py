"""Lookups by time in topics: first records at or after a time, newest records, idle partitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, Logs, Positions, TopicPartition

IDLE_AFTER = 600.0
"""Seconds after which a partition is idle by default."""

TIMES_WITHIN = 5.0
"""Time limit in seconds for one fetch of timestamps."""

_FURTHEST_BACK = 1024
"""
Largest number of offsets before the log end to search for the last record; transaction markers may follow it.
"""


def first_records(
    client: OffsetsReader,
    partitions: Iterable[TopicPartition],
    moment: int,
    logs: Logs,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> Positions:
    """
    Return the first offset at or after a time; ``None`` if no record is that new.

    A lookup by time also finds the marker that ends a transaction, which has the broker's time. So the next
    record decides; if that record is too old, the last record of the log decides.
    """
    found = client.offsets_for_time(partitions, moment)
    asked = {tp: offset for tp, offset in found.items() if offset is not None}
    times = record_times(client, asked, isolation_level)
    old = {tp: logs[tp] for tp in asked if (at := times.get(tp)) is not None and at < moment}
    times |= last_times(client, old, isolation_level)
    return {tp: offset if (times.get(tp) or -1) >= moment else None for tp, offset in found.items()}


def last_times(
    client: OffsetsReader,
    logs: Mapping[TopicPartition, LogRange],
    isolation_level: IsolationLevel = "read_uncommitted",
    back: int = 1,
) -> dict[TopicPartition, int | None]:
    """
    Return the timestamp of the last record, or of one of the last records if many markers end the log.

    :param back: number of offsets before the log end at which the search begins.
    """
    times: dict[TopicPartition, int | None] = {}
    while logs and back <= _FURTHEST_BACK:
        asked = {tp: max(log.start, log.end - back) for tp, log in logs.items()}
        found = record_times(client, asked, isolation_level)
        times |= {tp: at for tp, at in found.items() if at is not None}
        logs = {tp: log for tp, log in logs.items() if times.get(tp) is None and asked[tp] > log.start}
        back *= 2
    return times


def idle_partitions(
    client: OffsetsReader, silent: Iterable[TopicPartition], active: Collection[str], idle_after: float
) -> list[TopicPartition]:
    """
    Return the idle ones among partitions without a record at or after a time.

    :param active: the topics in which another partition has a record at or after the time.
    :param idle_after: a partition is idle if its newest record is older than this number of seconds.
    """
    silent = list(silent)
    since = max(0, int((time.time() - idle_after) * 1000))
    newer = client.offsets_for_time(silent, since)
    return [tp for tp in silent if tp.topic in active and newer[tp] is None]


def record_times(
    client: OffsetsReader, offsets: Mapping[TopicPartition, int], isolation_level: IsolationLevel
) -> dict[TopicPartition, int | None]:
    """Return the timestamp of the first record at or after each offset, as far as it is read in time."""
    if not offsets:
        return {}
    return client.record_times(offsets, within=TIMES_WITHIN, isolation_level=isolation_level)
