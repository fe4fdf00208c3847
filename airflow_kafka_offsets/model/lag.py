"""How far is a position behind the end of the log, and is that near enough?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.plan import align

NoCommitPolicy = Literal["fail", "earliest", "latest", "skip", "zero"]
"""
What a partition without a commit counts as: an error; as far behind as its whole log (``earliest``, where
a consumer with that reset policy would start); at its end (``latest``, likewise; ``zero`` says the same
of the number); or not at all (``skip``). An empty log has lag 0 under each of them.
"""


@dataclass(frozen=True)
class PartitionLag:
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
        """Return the lag as plain JSON."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "committed": self.committed,
            "log_start": self.log.start,
            "log_end": self.log.end,
            "lag": self.lag,
        }


@dataclass(frozen=True)
class Lag:
    """
    The lag of a position, partition by partition.

    :param name: whose position it is: a group, or a checkpoint.
    """

    name: str
    partitions: tuple[PartitionLag, ...]

    @classmethod
    def measure(
        cls,
        name: str,
        positions: Mapping[TopicPartition, int | None],
        logs: Mapping[TopicPartition, LogRange],
        on_no_commit: NoCommitPolicy | None = None,
    ) -> Lag:
        """
        Lay positions beside the logs.

        Positions have to be read before the logs: then a live group can only look further behind than it
        is, never further ahead. What still comes out below 0 counts as 0.

        :param on_no_commit: see :data:`NoCommitPolicy`; ``None`` leaves such a partition's lag ``None``.
        :raises NoCommitError: under ``fail``, if a partition whose log is not empty has no commit.
        """
        without = [
            tp for tp, position in positions.items() if position is None and logs[tp].end > logs[tp].start
        ]
        if without and on_no_commit == "fail":
            raise NoCommitError(
                f"{name} has no committed offset for {summarize(without)}, so its lag is undefined: commit first, name "
                "the topics= that it reads, or say with on_no_commit what such a partition counts as"
            )
        partitions = tuple(
            PartitionLag(tp, positions[tp], logs[tp], _lag(positions[tp], logs[tp], on_no_commit))
            for tp in sorted(positions)
        )
        return cls(name, partitions)

    @property
    def total(self) -> int:
        """Records waiting in all partitions that count."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def max(self) -> int:
        """Records waiting in the partition where most are."""
        return max((partition.lag or 0 for partition in self.partitions), default=0)

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        return sum(partition.lost for partition in self.partitions)

    def within(self, max_lag: int | None, max_partition_lag: int | None) -> bool:
        """Whether the total and each partition are at or below the thresholds that are given."""
        return (max_lag is None or self.total <= max_lag) and (
            max_partition_lag is None or self.max <= max_partition_lag
        )

    def as_json(self) -> dict[str, Any]:
        """Return the lag as plain JSON: ``total_lag``, ``max_lag`` and a list of ``partitions``."""
        return {
            "total_lag": self.total,
            "max_lag": self.max,
            "partitions": [partition.as_json() for partition in self.partitions],
        }

    def table(self) -> str:
        """Return the lag as lines for a log, as ``kafka-consumer-groups --describe`` shows it."""
        rows = [("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")]
        for entry in self.partitions:
            topic, number = entry.topic_partition
            position = "-" if entry.committed is None else str(entry.committed)
            lag = "-" if entry.lag is None else str(entry.lag)
            lost = f"  ({entry.lost} records lost to retention)" if entry.lost else ""
            rows.append((topic, str(number), position, str(entry.log.end), lag + lost))
        return "\n".join([f"{self.name}: total lag {self.total}", *align(rows)])


def remaining(positions: Mapping[TopicPartition, int | None], target: Offsets) -> Offsets:
    """
    Return how many offsets each partition is short of its target; empty when the target is reached.

    A partition without a position is short of everything up to its target.
    """
    return {
        topic_partition: end - (positions.get(topic_partition) or 0)
        for topic_partition, end in sorted(target.items())
        if (positions.get(topic_partition) or 0) < end
    }


def past_log_start(positions: Positions, target: Offsets, logs: Mapping[TopicPartition, LogRange]) -> Offsets:
    """
    Leave out of a target what nobody can reach any more.

    A partition without a commit whose log starts at or past the target has no record before it: there is
    nothing that anybody could wait for.
    """
    return {
        tp: end for tp, end in target.items() if not (positions.get(tp) is None and logs[tp].start >= end)
    }


def _lag(position: int | None, log: LogRange, on_no_commit: NoCommitPolicy | None) -> int | None:
    if position is not None:
        # Records below the log start are gone: nobody can be behind on them.
        return max(0, log.end - max(position, log.start))
    if log.start == log.end:
        return 0 if on_no_commit is not None else None
    return {"earliest": log.end - log.start, "latest": 0, "zero": 0}.get(on_no_commit or "")
