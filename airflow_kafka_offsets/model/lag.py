"""Lag: the distance of positions from the log end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.headroom import UNCOUNTED, Headrooms, headrooms_json, unknown_lines
from airflow_kafka_offsets.model.offsets import LogRange, Logs, Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, duration_text
from airflow_kafka_offsets.model.table import align_rows, offset_cell
from airflow_kafka_offsets.model.text import escape_controls
from airflow_kafka_offsets.model.wording import parameter_text


class PartitionLag(NamedTuple):
    """The lag of one partition."""

    topic_partition: TopicPartition
    committed: int | None
    """The position: the next record to read; ``None`` without a commit."""
    log: LogRange
    lag: int | None
    """Records from the position to the log end, never below 0; ``None`` when it is not counted."""

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        return 0 if self.committed is None else max(0, self.log.start - self.committed)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            **self.topic_partition._asdict(),
            "committed": self.committed,
            "log_start": self.log.start,
            "log_end": self.log.end,
            "lag": self.lag,
            "lost": self.lost,
        }


@dataclass(frozen=True)
class Lag:
    """
    The lag of a position, partition by partition.

    :param name: whose position it is: a group, or a checkpoint.
    :param tolerance: a partition that is at most so many records behind counts as caught up against a
        threshold; one that is further behind counts with all of them. The marker that ends a transaction
        takes an offset: a consumer that commits the offset after its last record stays 1 behind for ever
        (KAFKA-6607).
    :param time_lags: how many seconds ago the first record that was not read was written, for the partitions
        where that is longer ago than was asked for; ``None`` where its time could not be had. ``None`` as a
        whole:
        not asked.
    :param headroom: of the partitions whose lag is counted; ``None``: not asked.
    :param min_headroom: seconds that each of them should have.
    """

    name: str
    partitions: tuple[PartitionLag, ...]
    tolerance: int = 0
    time_lags: Mapping[TopicPartition, float | None] | None = field(default=None, hash=False)
    headroom: Headrooms | None = field(default=None, hash=False)
    min_headroom: float = 0.0

    @classmethod
    def measure(
        cls,
        name: str,
        positions: Mapping[TopicPartition, int | None],
        logs: Logs,
        on_no_commit: MissingCommitPolicy | None = None,
        tolerance: int = 0,
        *,
        named: bool = False,
    ) -> Lag:
        """
        Lay positions beside the logs.

        Positions have to be read before the logs: then a live group can only seem further behind than it is.

        :param on_no_commit: ``None`` leaves the lag of a partition without a commit ``None``.
        :param named: whether the topics were named, so that the error need not ask for them.
        :raises NoCommitError: under ``fail``, if a partition whose log is not empty has no commit.
        """
        without = [tp for tp, at in positions.items() if at is None and logs[tp].end > logs[tp].start]
        if without and on_no_commit == "fail":
            raise NoCommitError(
                f"{escape_controls(name)} has no committed offset for {summarize(without)}, so its lag is "
                "undefined: commit first, "
                + ("correct the name of the group" if named else f"name {parameter_text('topics', ...)}")
                + f", or say with {parameter_text('on_no_commit')} what such a partition counts as"
            )
        ordered = sorted(positions)
        read = [positions[tp] for tp in ordered]
        beside = [logs[tp] for tp in ordered]
        lags = [_lag(at, log, on_no_commit) for at, log in zip(read, beside, strict=True)]
        # There may be tens of thousands: map makes them in half the time.
        return cls(name, tuple(map(PartitionLag, ordered, read, beside, lags)), tolerance)

    @property
    def total(self) -> int:
        """Records waiting in all partitions that count."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def max_partition_lag(self) -> int:
        """Records waiting in the partition where most are."""
        return max((partition.lag or 0 for partition in self.partitions), default=0)

    @property
    def lag_above_tolerance(self) -> int:
        """Records waiting in the partitions that are further behind than the tolerance."""
        return sum(lag for partition in self.partitions if (lag := partition.lag or 0) > self.tolerance)

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        return sum(partition.lost for partition in self.partitions)

    @property
    def by_topic(self) -> dict[str, int]:
        """Records waiting in each topic."""
        topics: Counter[str] = Counter()
        for partition in self.partitions:
            topics[partition.topic_partition.topic] += partition.lag or 0
        return dict(topics)

    @property
    def time_lag(self) -> float | None:
        """Seconds since the oldest record that waits was written, as far as it was asked for and is known."""
        if self.time_lags is None:
            return None
        known = (seconds for seconds in self.time_lags.values() if seconds is not None)
        return max(known, default=None if self.total else 0.0)

    @property
    def first_unread(self) -> Offsets:
        """The offset from which the first unread record follows, in the partitions that are behind."""
        return {
            entry.topic_partition: entry.log.end - entry.lag
            for entry in self.partitions
            if entry.lag is not None and entry.lag > self.tolerance
        }

    @property
    def counted_positions(self) -> Offsets:
        """The position of each partition that counts, whatever the tolerance: retention has none."""
        return {
            entry.topic_partition: entry.log.end - entry.lag if entry.committed is None else entry.committed
            for entry in self.partitions
            if entry.lag is not None
        }

    def unread_before(self, first_new: Mapping[TopicPartition, int | None]) -> Offsets:
        """
        Return which partitions have not been read up to a time, and from where on.

        :param first_new: the first offset at or after the time, ``None`` if no record is that new.
        """
        return {
            tp: position
            for tp, position in self.first_unread.items()
            if (first := first_new[tp]) is None or position < first
        }

    def with_time_lags(
        self,
        asked: Collection[TopicPartition],
        times: Mapping[TopicPartition, int | None],
        now_ms: int,
        limit: float,
    ) -> Lag:
        """
        Add how late the partitions are that have not been read up to ``now - limit``.

        A lookup by time counts the markers of transactions as records, and a log with holes has none where
        the position is. So the record that follows decides: where none follows, or one that is new enough,
        the partition is not late.

        :param asked: from :meth:`unread_before`.
        :param times: when the record that follows was written; ``None`` where none does; missing if unknown.
        :param limit: seconds.
        """
        late: dict[TopicPartition, float | None] = {}
        for tp in sorted(asked):
            if tp not in times:
                late[tp] = None
            elif (time := times[tp]) is not None and now_ms - time > limit * 1000:
                late[tp] = (now_ms - time) / 1000
        return replace(self, time_lags=late)

    def without_durations(self) -> Lag:
        """Return the same without times, which change by themselves: only which partitions they concern."""
        least = self.min_headroom
        return replace(
            self,
            time_lags=None if self.time_lags is None else dict.fromkeys(self.time_lags),
            headroom=self.headroom
            and {tp: found.without_durations(least) for tp, found in self.headroom.items()},
        )

    def is_within(self, max_lag: int | None, max_partition_lag: int | None = None) -> bool:
        """Whether the thresholds that are given hold, and no partition is late or short of headroom."""
        # The tolerance hides a partition, it does not shorten a lag.
        furthest = self.max_partition_lag if self.max_partition_lag > self.tolerance else 0
        few = max_lag is None or self.lag_above_tolerance <= max_lag
        return (
            few
            and (max_partition_lag is None or furthest <= max_partition_lag)
            and not (self.time_lags or self.below_min_headroom)
        )

    @property
    def below_min_headroom(self) -> list[TopicPartition]:
        """The partitions whose headroom is less than it should be, or not known."""
        least = self.min_headroom
        return [tp for tp, found in (self.headroom or {}).items() if found.is_below(least) is not False]

    def as_json(self) -> dict[str, Any]:
        """
        Return the lag as plain JSON.

        ``total_lag``, ``max_partition_lag`` (of the partition where most records wait), ``lost`` (records
        that retention deleted unread), ``topics`` (records waiting in each) and a list of ``partitions``; if
        it was asked for, ``time_lag`` in seconds, of each partition too, and ``headroom`` with
        ``headroom_state``, of each partition with ``headroom_reason``.
        """
        partitions = [partition.as_json() for partition in self.partitions]
        if self.time_lags is not None:
            for partition, entry in zip(self.partitions, partitions, strict=True):
                known = 0.0 if partition.lag == 0 else None
                entry["time_lag"] = self.time_lags.get(partition.topic_partition, known)
        if self.headroom is not None:
            for partition, entry in zip(self.partitions, partitions, strict=True):
                found = self.headroom.get(partition.topic_partition)
                entry |= UNCOUNTED if found is None else found.as_json()
        return {
            "total_lag": self.total,
            "max_partition_lag": self.max_partition_lag,
            **({} if self.time_lags is None else {"time_lag": self.time_lag}),
            **({} if self.headroom is None else headrooms_json(self.headroom.values())),
            "lost": self.lost,
            "topics": self.by_topic,
            "partitions": partitions,
        }

    def table(self, limit: int | None = None) -> str:
        """
        Return the lag as lines for a log, as ``kafka-consumer-groups --describe`` shows it.

        :param limit: lines at most: the partitions that are short of headroom, then those furthest behind.
        """
        short = set(self.below_min_headroom)
        furthest = sorted(
            self.partitions,
            key=lambda entry: (
                -entry.lost,
                entry.topic_partition not in short,
                -(entry.lag or 0),
                entry.topic_partition,
            ),
        )
        shown = sorted(furthest[:limit], key=lambda entry: entry.topic_partition)
        header = ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
        times = [] if self.time_lags is None else ["TIME-LAG"]
        rows = [[*header, *times, *([] if self.headroom is None else ["HEADROOM"])]]
        for entry in shown:
            topic, number = entry.topic_partition
            row = [topic, str(number), *map(offset_cell, (entry.committed, entry.log.end, entry.lag))]
            if self.time_lags is not None:
                row.append(_duration(self.time_lags.get(entry.topic_partition, 0.0)))
            if self.headroom is not None:
                row.append(str(self.headroom.get(entry.topic_partition, "-")))
            if entry.lost:
                row[-1] += f"  ({entry.lost} records lost to retention)"
            rows.append(row)
        lines = [f"{escape_controls(self.name)}: total lag {self.total}", *align_rows(rows)]
        if len(shown) < len(self.partitions):
            rest = self.total - sum(entry.lag or 0 for entry in shown)
            more = len(self.partitions) - len(shown)
            lines.append(f"... and {more} more partitions with a lag of {rest} together")
        lines += unknown_lines(self.headroom or {})
        return "\n".join(lines)


def remaining_offsets(
    positions: Mapping[TopicPartition, int | None], target: Offsets, tolerance: int = 0
) -> Offsets:
    """
    Return how many offsets each partition is short of its target; empty when the target is reached.

    Without a position it is short of all offsets up to its target, whatever the tolerance.
    """
    # Offsets below the log start count here; whoever wants them not to calls clamp_to_log_start first.
    short = {tp: end - (positions.get(tp) or 0) for tp, end in sorted(target.items())}
    return {tp: rest for tp, rest in short.items() if rest > (0 if positions.get(tp) is None else tolerance)}


def clamp_to_log_start(positions: Positions, logs: Logs) -> Positions:
    """Return the positions, those below the log start at the log start: the records are gone."""
    return {tp: None if at is None else max(at, logs[tp].start) for tp, at in positions.items()}


def readable_target(positions: Positions, target: Offsets, logs: Logs) -> Offsets:
    """Leave out of a target the partitions without a commit that hold no record before it any more."""
    return {tp: end for tp, end in target.items() if positions.get(tp) is not None or logs[tp].start < end}


def _lag(position: int | None, log: LogRange, on_no_commit: MissingCommitPolicy | None) -> int | None:
    start, end = log
    if position is not None:
        # Records below the log start are gone: nobody can be behind on them.
        lag = end - max(start, position)
        return max(0, lag)
    # Wherever a consumer starts in an empty log, nothing waits for it.
    if start == end:
        return 0 if on_no_commit is not None else None
    return {"earliest": end - start, "latest": 0}.get(on_no_commit or "")


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration_text(seconds) if seconds else "-"
