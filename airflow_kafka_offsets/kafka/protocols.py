"""What each client can do: read offsets and commit them, also from a Spark driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commits, IsolationLevel, LogRange, Positions, TopicPartition


class PositionsReader(Protocol):
    """Reads groups and logs; every client implements it, including the one in a Spark driver's JVM."""

    def cluster_id(self) -> str:
        """Return the cluster's id; empty if the broker reports none."""

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics."""

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of topics, without missing topics."""

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` for a partition without a commit."""

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return the start and end offsets of logs."""

    def offsets_for_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Positions:
        """Return the first offset at or after a time, in ms since 1970; ``None`` if no record is that new."""


class CommitPort(PositionsReader, Protocol):
    """
    Commits to a group without members; every client implements it.

    Only :mod:`airflow_kafka_offsets.moves.write` calls the methods of clients that change a group.
    """

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """Commit offsets; ``check`` gets the commits right before they are overwritten, at each attempt."""

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps offsets of a group without members; ``None`` if unknown."""

    def close(self) -> None:
        """Close the connections."""
