"""Times of records: those since a time, the newest ones, and those at given offsets; idle partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    Logs,
    OffsetRange,
    Offsets,
    Positions,
    TopicPartition,
    offsets_at_time,
    summarize,
)
from airflow_kafka_offsets.model.table import DELETED, TimesByOffset

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan

log = logging.getLogger(__name__)

IDLE_AFTER = 600.0
"""Seconds after which a partition is idle by default."""

AHEAD = 60_000
"""Largest accepted lead, in milliseconds, of a producer's clock over the local clock."""

TIMES_WITHIN = 5.0
"""Time limit in seconds for one fetch of timestamps."""


def first_records(
    client: OffsetsReader,
    partitions: Iterable[TopicPartition],
    moment: int,
    logs: Logs,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> tuple[Positions, set[TopicPartition]]:
    """
    Return the first offset at or after a time, ``None`` if no record is that new; and the partitions in which
    this record is ahead of the clock.

    A lookup by time also finds the marker that ends a transaction, which has the broker's time. So the next
    record decides; if it is too old, or ahead of the clock, the last record of the log decides.
    """
    found = client.offsets_for_time(partitions, moment)
    asked = {tp: offset for tp, offset in found.items() if offset is not None}
    times = client.record_times(asked, within=TIMES_WITHIN, isolation_level=isolation_level)
    latest = now_ms() + AHEAD
    doubtful = {tp for tp in asked if (at := times.get(tp)) is not None and not moment <= at <= latest}
    ahead = {tp for tp in doubtful if (times[tp] or 0) > latest}
    times |= last_times(client, {tp: logs[tp] for tp in doubtful}, isolation_level)
    proven = {tp for tp, at in times.items() if at is not None and moment <= at <= latest}
    return {tp: offset if tp in proven else None for tp, offset in found.items()}, ahead


class Since(NamedTuple):
    """
    The first record at or after a time in each partition, or the log end.

    ``ahead`` has the times of those records that are ahead of the clock, in ms since 1970. Such a record does
    not prove that all records before the time are in the log before it.
    """

    offsets: Offsets
    ahead: Mapping[TopicPartition, int]


def records_since(
    client: OffsetsReader, partitions: Iterable[TopicPartition], moment: int, logs: Logs
) -> Since:
    """
    Return the first record at or after a time, in ms since 1970, by the records' own times.

    A lookup by time may find the marker of a transaction, which has the broker's time. The records behind it
    may be older, and are then read until the first one that is not. A search by halves would read less, but
    it depends on the log end if the times are out of order: two windows that meet at a time must find the
    same record, whenever they are planned.
    """
    offsets = offsets_at_time(client.offsets_for_time(partitions, max(0, moment)), logs)
    asked = {tp: offset for tp, offset in offsets.items() if offset < logs[tp].end}
    times = client.record_times(asked) if asked else {}
    refuse_unread_times(asked.keys() - times.keys())
    behind = {
        tp: OffsetRange(offset, logs[tp].end)
        for tp, offset in asked.items()
        if (time := times[tp]) is not None and time < moment
    }
    first: Mapping[TopicPartition, tuple[int, int] | None] = {}
    if behind:
        log.info("Reading the records behind a transaction, which are older, in %s", summarize(behind))
        first = client.first_since(behind, moment)
    if unread := behind.keys() - first.keys():
        raise BrokerUnavailableError(
            f"the records of {summarize(unread)} behind a transaction are older than the time, and could not "
            "all be read, so the first record since the time is unknown there: try again, or give offsets"
        )
    for tp, found in first.items():
        offsets[tp], times[tp] = found or (logs[tp].end, None)
    latest = now_ms() + AHEAD
    return Since(offsets, {tp: time for tp, time in times.items() if time is not None and time > latest})


def refuse_unread_times(partitions: Collection[TopicPartition]) -> None:
    """Raise an error for partitions with a record whose time is needed and was not read in time."""
    if partitions:
        raise BrokerUnavailableError(
            f"the times of records in {summarize(partitions)} could not be read in time, or the records have "
            "none, so they could not be compared: try again; a quota of the broker may slow the reads down"
        )


def last_times(
    client: OffsetsReader, logs: Logs, isolation_level: IsolationLevel = "read_uncommitted", back: int = 1
) -> dict[TopicPartition, int | None]:
    """
    Return the timestamp of the last record, or of one of the last records if many markers end the log.

    The search begins ``back`` offsets before the log end, and ends 1,024 offsets before it.
    """
    times: dict[TopicPartition, int | None] = {}
    while logs and back <= 1024:
        asked = {tp: max(log.start, log.end - back) for tp, log in logs.items()}
        found = client.record_times(asked, within=TIMES_WITHIN, isolation_level=isolation_level)
        times |= {tp: at for tp, at in found.items() if at is not None}
        logs = {tp: log for tp, log in logs.items() if times.get(tp) is None and asked[tp] > log.start}
        back *= 2
    return times


def idle_partitions(
    client: OffsetsReader, silent: Sequence[TopicPartition], active: Collection[str], idle_after: float
) -> list[TopicPartition]:
    """
    Return the idle ones among partitions without a record at or after a time.

    :param active: the topics in which another partition has a record at or after the time.
    :param idle_after: a partition is idle if its newest record is older than this number of seconds.
    """
    since = max(0, now_ms() - int(idle_after * 1000))
    newer = client.offsets_for_time(silent, since)
    return [tp for tp in silent if tp.topic in active and newer[tp] is None]


def look_up_times(client: OffsetsReader, plan: PipelinePlan) -> PipelinePlan:
    """Return a plan with the timestamps of records at its positions, as far as they are read in time."""
    positions = {(tp, offset) for tp, offset in plan.table_positions() if offset >= 0}
    try:
        logs = client.log_ranges({tp for tp, _ in positions})
        deleted = {(tp, offset) for tp, offset in positions if offset < logs[tp].start}
        # The timestamps are only informative, so the time limit is short.
        known = read_times_at(client, positions - deleted, 5.0)
        times: TimesByOffset = {**known, **dict.fromkeys(deleted, DELETED)}
        return plan.with_times(times)
    except BrokerError as error:
        log.info("The timestamps of the records are not shown: %s", error)
        return plan


def read_times_at(
    client: OffsetsReader, positions: Iterable[tuple[TopicPartition, int]], within: float
) -> dict[tuple[TopicPartition, int], int | None]:
    """Return the timestamps of records at partitions and offsets, as far as they are read within the time."""
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left, end = sorted(positions), time.monotonic() + within
    while left and (within := end - time.monotonic()) > 0:
        asked = dict(left)  # each partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        times |= {(tp, asked[tp]): at for tp, at in client.record_times(asked, within=within).items()}
    return times


def now_ms() -> int:
    """Return the present time in ms since 1970."""
    return int(time.time() * 1000)
