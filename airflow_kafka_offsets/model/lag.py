"""Lag: the distance of positions from the log end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.headroom import NO_HEADROOM, Headrooms, headrooms_json, reason_lines
from airflow_kafka_offsets.model.offsets import LogRange, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, duration_text
from airflow_kafka_offsets.model.partition_state import PartitionState, measured_headrooms
from airflow_kafka_offsets.model.table import align_rows, offset_cell
from airflow_kafka_offsets.model.text import escape_controls, plural
from airflow_kafka_offsets.model.wording import parameter_text


@dataclass(frozen=True)
class Lag:
    """
    The lag of a group or a checkpoint, partition by partition.

    :param name: the group or the checkpoint, for texts.
    :param tolerance: for thresholds, a lag up to this number of records counts as zero; a greater lag counts
        in full. It is needed because the marker that ends a transaction takes an offset: a consumer that
        commits the offset after its last record keeps a lag of 1 forever (KAFKA-6607).
    :param has_time_lags: whether the time lag was requested.
    :param has_headroom: whether the headroom was requested; it is measured where the lag is counted.
    """

    name: str
    partitions: tuple[PartitionState, ...]
    tolerance: int = 0
    has_time_lags: bool = False
    has_headroom: bool = False

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
        starts = repeat(None) if on_no_commit is None else [_start(log, on_no_commit) for log in beside]
        # There may be tens of thousands of partitions, and map takes half the time of a loop.
        return cls(name, tuple(map(PartitionState, ordered, read, beside, starts)), tolerance)

    def with_time_lags(self, late: Mapping[TopicPartition, float | None]) -> Lag:
        """Return the lag with the time lags of the partitions that are late."""
        rows = (row._replace(time_lag=late.get(row.topic_partition, 0.0)) for row in self.partitions)
        return replace(self, partitions=tuple(rows), has_time_lags=True)

    def with_headroom(self, found: Headrooms, min_headroom: float = 0.0) -> Lag:
        """Return the lag with the headroom of partitions, and the required one in seconds."""
        rows = (
            row._replace(headroom=found.get(row.topic_partition), min_headroom=min_headroom)
            for row in self.partitions
        )
        return replace(self, partitions=tuple(rows), has_headroom=True)

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
        if not self.has_time_lags:
            return None
        known = (row.time_lag for row in self.partitions if row.time_lag)
        return max(known, default=None if self.total else 0.0)

    @property
    def headroom(self) -> Headrooms | None:
        """The headroom of the partitions whose lag is counted; ``None`` if it was not requested."""
        return measured_headrooms(self.partitions) if self.has_headroom else None

    @property
    def first_unread(self) -> Offsets:
        """The offset of the next record to read, in the partitions whose lag is above the tolerance."""
        return {
            row.topic_partition: at
            for row in self.partitions
            if (row.lag or 0) > self.tolerance and (at := row.first_unread) is not None
        }

    @property
    def counted_positions(self) -> Offsets:
        """The position of each counted partition, whatever the tolerance, because retention ignores it."""
        return {row.topic_partition: at for row in self.partitions if (at := row.position) is not None}

    def above(self, max_lag: int | None, max_partition_lag: int | None = None) -> tuple[int, ...]:
        """Return the number of records above each given threshold."""
        # The tolerance hides a small lag; it does not reduce a greater one.
        lags = [lag for partition in self.partitions if (lag := partition.lag or 0) > self.tolerance]
        limits = ((sum(lags), max_lag), (max(lags, default=0), max_partition_lag))
        return tuple(max(0, found - limit) for found, limit in limits if limit is not None)

    def is_within(self, max_lag: int | None, max_partition_lag: int | None = None) -> bool:
        """Whether the given thresholds hold, and no partition is late or below its headroom."""
        late = any(row.is_late or row.is_expiring is not False for row in self.partitions)
        return not late and not any(self.above(max_lag, max_partition_lag))

    def as_json(self) -> dict[str, Any]:
        """
        Return the lag as plain JSON.

        The keys are ``total_lag``, ``max_partition_lag`` (the highest lag of a partition), ``lost`` (records
        that retention deleted unread), ``topics`` (the lag of each topic) and ``partitions``, a list. If
        requested, ``time_lag`` in seconds, and ``headroom`` with ``headroom_state``, are added in total and
        for each partition; a partition also has ``headroom_reason``.
        """
        headrooms = [row.headroom for row in self.partitions if row.headroom is not None]
        return {
            "total_lag": self.total,
            "max_partition_lag": self.max_partition_lag,
            **({"time_lag": self.time_lag} if self.has_time_lags else {}),
            **(headrooms_json(headrooms) if self.has_headroom else {}),
            "lost": self.lost,
            "topics": self.by_topic,
            "partitions": [self._row_json(row) for row in self.partitions],
        }

    def _row_json(self, row: PartitionState) -> dict[str, Any]:
        lag = row.lag
        value = {
            **row.topic_partition._asdict(),
            "committed": row.committed,
            "log_start": row.log_start,
            "log_end": row.log_end,
            "lag": lag,
            "lost": row.lost,
        }
        if self.has_time_lags:
            value["time_lag"] = row.time_lag or (0.0 if lag == 0 else None)
        if self.has_headroom:
            value |= NO_HEADROOM if row.headroom is None else row.headroom.as_json()
        return value

    def table(self, limit: int | None = None, *, durations: bool = True) -> str:
        """
        Return the lag as lines for a log, like ``kafka-consumer-groups --describe``.

        :param limit: the largest number of partitions to show. Partitions with lost records come first, then
            those below their headroom, then those with the highest lag.
        :param durations: whether to show durations, which change constantly, or only their verdicts.
        """
        furthest = sorted(
            self.partitions,
            key=lambda row: (-row.lost, row.is_expiring is False, -(row.lag or 0), row.topic_partition),
        )
        shown = sorted(furthest[:limit], key=lambda row: row.topic_partition)
        header = ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
        times = ["TIME-LAG"] if self.has_time_lags else []
        table = [[*header, *times, *(["HEADROOM"] if self.has_headroom else [])]]
        for row in shown:
            topic, number = row.topic_partition
            cells = [topic, str(number), *map(offset_cell, (row.committed, row.log_end, row.lag))]
            if self.has_time_lags:
                cells.append(_duration(row.time_lag) if durations else str(row.is_late))
            if self.has_headroom:
                cells.append(str((row.headroom or "-") if durations else row.is_expiring))
            if row.lost:
                cells[-1] += f"  ({plural(row.lost, 'record')} lost to retention)"
            table.append(cells)
        left_out = sum(row.uncounted for row in self.partitions)
        without = f", without {plural(left_out, 'record')} in partitions without a commit" if left_out else ""
        known = not self.partitions or any(row.lag is not None for row in self.partitions)
        total = f"total lag {self.total:,}" if known else "lag unknown"
        lines = [f"{escape_controls(self.name)}: {total}{without}", *align_rows(table)]
        if len(shown) < len(self.partitions):
            rest = self.total - sum(row.lag or 0 for row in shown)
            more = len(self.partitions) - len(shown)
            lines.append(f"... and {plural(more, 'more partition')} with a total lag of {rest:,}")
        lines += reason_lines(self.headroom or {})
        return "\n".join(lines)


def _start(log: LogRange, on_no_commit: MissingCommitPolicy) -> int | None:
    """Return where a group without a commit starts to read."""
    # In an empty log the lag is 0, wherever a consumer starts.
    if on_no_commit == "earliest" or log.start == log.end:
        return log.start
    return log.end if on_no_commit == "latest" else None


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration_text(seconds) if seconds else "-"
