"""
Progress of positions in the time of the records, for :mod:`airflow_kafka_offsets.readings.interval_feed`.

The module sends few requests to the broker. It fetches the timestamp of the record at each position once, for
all intervals and schedules. If these timestamps are late enough, an interval is complete, and so are all
intervals before it. Only partitions without such a timestamp are looked up by time, once for each interval
that is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.model.offsets import Logs, Positions, TopicPartition, remaining_offsets
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.readings.topic_times import (
    AHEAD,
    TIMES_WITHIN,
    idle_partitions,
    last_times,
    refuse_unread_times,
)


class _Times(NamedTuple):
    """
    Timestamps of records, in ms since 1970.

    :param unread: timestamp of the first unread record, for partitions with unread records.
    :param newest: the same; for a partition without unread records, the timestamp of its newest record.
    :param unknown: partitions with unread offsets whose next record could not be fetched.
    """

    unread: Mapping[TopicPartition, int]
    newest: Mapping[TopicPartition, int]
    unknown: frozenset[TopicPartition]


class RecordProgress:
    """
    Positions compared with the timestamps of the records.

    A position has reached a time in a partition if the partition has a record of that time or later (but not
    ahead of the clock), and that record was read or is the next one. This combines the rules of
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor` and
    :class:`~airflow_kafka_offsets.sensors.topic.TopicReachedSensor`. Later records never change this result;
    only a move back of the position does.

    Without any position, no time is reached. Nor is it in a partition that has no position, if retention has
    deleted its first records.

    :param positions: the positions; ``None`` for a partition without a record that was read.
    :param logs: the ranges of the logs, read after the positions.
    :param now: the current time in ms since 1970.
    :param idle_after: a partition is idle if its newest record is older than this number of seconds. An idle
        partition that was read to its end is ignored, if another partition of its topic has reached the time.
        With ``None``, every partition counts.
    """

    def __init__(
        self,
        client: OffsetsReader,
        positions: Positions,
        logs: Logs,
        *,
        now: int,
        idle_after: float | None = None,
    ) -> None:
        self.now = now
        self._client = client
        self.logs = logs
        self._known = {tp for tp, at in positions.items() if at is not None}
        self._at: Positions = {tp: max(at or 0, logs[tp].start) for tp, at in positions.items()}
        self._idle_after = idle_after
        self._missing: dict[int, dict[TopicPartition, str]] = {}

    @cached_property
    def _times(self) -> _Times:
        logs = {tp: self.logs[tp] for tp in self._at if self.logs[tp].start < self.logs[tp].end}
        at = {tp: self._at[tp] or 0 for tp in logs}
        asked = {tp: min(at[tp], log.end - 1) for tp, log in logs.items()}
        found = self._client.record_times(asked, within=TIMES_WITHIN)
        ahead = {tp for tp, log in logs.items() if at[tp] < log.end}
        unread = {tp: time for tp in ahead if (time := found.get(tp)) is not None}
        # In these partitions only transaction markers follow.
        markers = {tp: logs[tp] for tp in found if found[tp] is None}
        newest = {tp: time for tp, time in found.items() if time is not None}
        newest |= {
            tp: time for tp, time in last_times(self._client, markers, back=2).items() if time is not None
        }
        return _Times(unread, newest, frozenset(ahead - found.keys()))

    @property
    def has_position(self) -> bool:
        """Whether there is a position in any partition."""
        return bool(self._known)

    @property
    def time(self) -> int | None:
        """The timestamp of the first unread record, or now if none is older; ``None`` without a position."""
        refuse_unread_times(self._times.unknown & self._known)
        unread = [time for tp, time in self._times.unread.items() if tp in self._known]
        return min([*unread, self.now]) if self.has_position else None

    def reached(self, moments: Sequence[int]) -> int:
        """Return how many of ascending times all partitions have reached, by a search from an estimate."""
        if not moments:
            return 0
        times = self._times
        least = -1 if self._idle_after is None else self.now - int(self._idle_after * 1000)
        # Probably all partitions have reached it. Idle partitions that were read to their end are ignored.
        estimate = min(
            (time for tp, time in times.newest.items() if tp in times.unread or time >= least),
            default=self.now,
        )
        low, high, step = 0, len(moments) + 1, 1
        probe = max(1, sum(moment <= estimate for moment in moments))
        while low + 1 < high:
            if not self.missing(moments[probe - 1]):
                low, probe = probe, min(high - 1, probe + step)
                step *= 2
            else:
                high, probe = probe, (low + probe) // 2
        return low

    def missing(self, moment: int) -> dict[TopicPartition, str]:
        """Return why partitions have not reached a time; empty if all have. Results are cached."""
        if moment not in self._missing:
            self._missing[moment] = self._look_up(moment)
        return self._missing[moment]

    def _look_up(self, moment: int) -> dict[TopicPartition, str]:
        # Records that retention has deleted there were perhaps not read.
        absent = [
            tp
            for tp in sorted(self._at.keys() - self._known)
            if not self._known or 0 < self.logs[tp].start < self.logs[tp].end
        ]
        if absent:
            return dict.fromkeys(absent, "has no position")
        times, latest = self._times, self.now + AHEAD
        undecided = [tp for tp in sorted(self._at) if not moment <= times.newest.get(tp, -1) <= latest]
        first = self._client.offsets_for_time(undecided, moment)
        asked = {tp: offset for tp, offset in first.items() if offset is not None}
        silent = [tp for tp in undecided if first[tp] is None]
        short = remaining_offsets({tp: self._at[tp] for tp in asked}, asked, self.logs)
        missing = {tp: f"has not read up to offset {asked[tp]}" for tp in short}
        if silent and self._idle_after is None:
            missing |= dict.fromkeys(silent, "holds no record since")
        if missing:
            return missing
        missing = self._unproven(asked, moment)
        if silent and self._idle_after is not None:
            active = {tp.topic for tp in self._at if tp not in missing and tp not in silent}
            idle = set(idle_partitions(self._client, silent, active, self._idle_after))
            idle -= times.unread.keys() | times.unknown
            why = "holds no record since, and is not idle, or no partition of its topic holds one"
            missing |= {tp: why for tp in silent if tp not in idle}
        return missing

    def rewound_to(self, moment: int) -> int | None:
        """
        Return the time of the first unread record of positions that have gone back before a time.

        ``None`` if none has moved back. Partitions without a position, and partitions that were read to their
        end, are left out.
        """
        times = self._times
        older = {tp for tp, time in times.unread.items() if time < moment} | times.unknown
        asked = sorted(older & self._known)
        first = self._client.offsets_for_time(asked, moment)
        target = {tp: offset for tp, offset in first.items() if offset is not None}
        short = remaining_offsets({tp: self._at[tp] for tp in target}, target, self.logs)
        refuse_unread_times(short.keys() & times.unknown)
        return min((times.unread[tp] for tp in short), default=None)

    def _unproven(self, claimed: Mapping[TopicPartition, int], moment: int) -> dict[TopicPartition, str]:
        """
        Return why the result of a lookup by time does not prove that a time was reached.

        The lookup also finds transaction markers, which have the broker's time, and records of a producer
        whose clock is ahead.
        """
        times = self._client.record_times(claimed, within=TIMES_WITHIN)
        missing = {}
        for tp, offset in claimed.items():
            time = times.get(tp, -1)
            if time is None or time < moment:
                missing[tp] = "holds no record since that proves it"
            elif time > self.now + AHEAD:
                missing[tp] = f"has a record of {iso_time(time)}, ahead of the clock, at offset {offset}"
        return missing
