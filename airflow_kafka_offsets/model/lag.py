"""Lag: the distance of positions from the log end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.headroom import UNCOUNTED, Headrooms, headrooms_json, unknown_lines
from airflow_kafka_offsets.model.offsets import LogRange, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, duration_text
from airflow_kafka_offsets.model.table import align_rows, offset_cell
from airflow_kafka_offsets.model.text import escape_controls
from airflow_kafka_offsets.model.wording import parameter_text


class PartitionLag(NamedTuple):
    """The lag of one partition."""

    topic_partition: TopicPartition
    committed: int | None
    """The offset of the next record to read; ``None`` without a commit."""
    log: LogRange
    lag: int | None
    """Records from the position to the log end, never below 0; ``None`` if the lag is not counted."""

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
    The lag of a group or a checkpoint, partition by partition.

    :param name: the group or the checkpoint, for texts.
    :param tolerance: for thresholds, a lag up to this number of records counts as zero; a greater lag counts
        in full. It is needed because the marker that ends a transaction takes an offset: a consumer that
        commits the offset after its last record keeps a lag of 1 forever (KAFKA-6607).
    :param time_lags: age in seconds of the first unread record, for the partitions where it exceeds the
        limit; ``None`` for a partition whose record has no known timestamp. ``None`` instead of the mapping
        if no time lag was requested.
    :param headroom: headroom of the partitions whose lag is counted; ``None`` if not requested.
    :param min_headroom: required headroom of each partition, in seconds.
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
    ) -> Lag:
        """
        Compare positions with the logs.

        The positions must be read before the logs: the lag of an active group is then never too low.

        :param on_no_commit: with ``None``, a partition without a commit has the lag ``None``.
        :raises NoCommitError: under ``fail``, if a partition whose log is not empty has no commit.
        """
        without = [tp for tp, at in positions.items() if at is None and logs[tp].end > logs[tp].start]
        if without and on_no_commit == "fail":
            raise NoCommitError(
                f"{escape_controls(name)} has no committed offset for {summarize(without)}, so its lag is "
                f"undefined: commit first, correct the name of the group or {parameter_text('topics', ...)}, "
                f"or set {parameter_text('on_no_commit')} to define its lag"
            )
        ordered = sorted(positions)
        read = [positions[tp] for tp in ordered]
        beside = [logs[tp] for tp in ordered]
        lags = [_lag(at, log, on_no_commit) for at, log in zip(read, beside, strict=True)]
        # There may be tens of thousands of partitions, and map takes half the time of a loop.
        return cls(name, tuple(map(PartitionLag, ordered, read, beside, lags)), tolerance)

    @property
    def total(self) -> int:
        """Unread records in all counted partitions."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def max_partition_lag(self) -> int:
        """Unread records in the partition with the most of them."""
        return max((partition.lag or 0 for partition in self.partitions), default=0)

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        return sum(partition.lost for partition in self.partitions)

    @property
    def by_topic(self) -> dict[str, int]:
        """Unread records in each topic."""
        topics: Counter[str] = Counter()
        for partition in self.partitions:
            topics[partition.topic_partition.topic] += partition.lag or 0
        return dict(topics)

    @property
    def time_lag(self) -> float | None:
        """Age in seconds of the oldest unread record; ``None`` if it was not requested or is unknown."""
        if self.time_lags is None:
            return None
        known = (seconds for seconds in self.time_lags.values() if seconds is not None)
        return max(known, default=None if self.total else 0.0)

    @property
    def first_unread(self) -> Offsets:
        """The offset of the next record to read, in the partitions whose lag is above the tolerance."""
        return {
            entry.topic_partition: entry.log.end - entry.lag
            for entry in self.partitions
            if entry.lag is not None and entry.lag > self.tolerance
        }

    @property
    def counted_positions(self) -> Offsets:
        """The position of each counted partition, whatever the tolerance, because retention ignores it."""
        return {
            entry.topic_partition: entry.log.end - entry.lag if entry.committed is None else entry.committed
            for entry in self.partitions
            if entry.lag is not None
        }

    def without_durations(self) -> Lag:
        """Return the lag without durations, which change constantly: keep only their partitions."""
        least = self.min_headroom
        return replace(
            self,
            time_lags=None if self.time_lags is None else dict.fromkeys(self.time_lags),
            headroom=self.headroom
            and {tp: found.without_durations(least) for tp, found in self.headroom.items()},
        )

    def above(self, max_lag: int | None, max_partition_lag: int | None = None) -> tuple[int, ...]:
        """Return the number of records above each given threshold."""
        # The tolerance hides a small lag; it does not reduce a greater one.
        lags = [lag for partition in self.partitions if (lag := partition.lag or 0) > self.tolerance]
        limits = ((sum(lags), max_lag), (max(lags, default=0), max_partition_lag))
        return tuple(max(0, found - limit) for found, limit in limits if limit is not None)

    def is_within(self, max_lag: int | None, max_partition_lag: int | None = None) -> bool:
        """Whether the given thresholds hold, and no partition is late or below its headroom."""
        late = self.time_lags or self.below_min_headroom
        return not late and not any(self.above(max_lag, max_partition_lag))

    @property
    def below_min_headroom(self) -> list[TopicPartition]:
        """The partitions whose headroom is below ``min_headroom`` or unknown."""
        least = self.min_headroom
        return [tp for tp, found in (self.headroom or {}).items() if found.is_below(least) is not False]

    def as_json(self) -> dict[str, Any]:
        """
        Return the lag as plain JSON.

        The keys are ``total_lag``, ``max_partition_lag`` (the highest lag of a partition), ``lost`` (records
        that retention deleted unread), ``topics`` (the lag of each topic) and ``partitions``, a list. If
        requested, ``time_lag`` in seconds, and ``headroom`` with ``headroom_state``, are added in total and
        for each partition; a partition also has ``headroom_reason``.
        """
        partitions = [partition.as_json() for partition in self.partitions]
        for partition, entry in zip(self.partitions, partitions, strict=True):
            tp = partition.topic_partition
            if self.time_lags is not None:
                entry["time_lag"] = self.time_lags.get(tp, 0.0 if partition.lag == 0 else None)
            if self.headroom is not None:
                entry |= self.headroom[tp].as_json() if tp in self.headroom else UNCOUNTED
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
        Return the lag as lines for a log, like ``kafka-consumer-groups --describe``.

        :param limit: the largest number of partitions to show. Partitions with lost records come first, then
            those below their headroom, then those with the highest lag.
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
        lines = [f"{escape_controls(self.name)}: total lag {self.total}{self._uncounted}", *align_rows(rows)]
        if len(shown) < len(self.partitions):
            rest = self.total - sum(entry.lag or 0 for entry in shown)
            more = len(self.partitions) - len(shown)
            lines.append(f"... and {more} more partitions with a total lag of {rest}")
        lines += unknown_lines(self.headroom or {})
        return "\n".join(lines)

    @property
    def _uncounted(self) -> str:
        """What the total leaves out: records in partitions whose lag is not counted."""
        uncounted = (entry.log for entry in self.partitions if entry.lag is None)
        records = sum(max(0, log.end - log.start) for log in uncounted)
        return f", without {records} records in partitions that have no commit" if records else ""


def _lag(position: int | None, log: LogRange, on_no_commit: MissingCommitPolicy | None) -> int | None:
    start, end = log
    if position is not None:
        # Deleted records below the log start do not count.
        lag = end - max(start, position)
        return max(0, lag)
    # In an empty log the lag is 0, wherever a consumer starts.
    if start == end:
        return 0 if on_no_commit is not None else None
    return {"earliest": end - start, "latest": 0}.get(on_no_commit or "")


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration_text(seconds) if seconds else "-"
