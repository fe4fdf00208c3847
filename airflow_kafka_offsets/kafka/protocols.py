"""Protocols of the clients: what reads offsets, from a broker or from a cache, and what commits them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    OffsetRange,
    TopicPartition,
)


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


class OffsetsReader(PositionsReader, Protocol):
    """The methods of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` that change nothing."""

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all commits of a group."""

    def sees_all_topics(self) -> bool:
        """Return whether the user may see all topics, as far as the client can tell."""

    def assigned(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions that the members of a group read, as far as known."""

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time."""

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """Return the time of the first record at or after each offset."""

    def first_since(
        self, ranges: Mapping[TopicPartition, OffsetRange], timestamp_ms: int
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return the offset and the time of the first record in each range that is not older than a time."""

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the settings of topics that decide when records are deleted, or an error for each topic."""


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
