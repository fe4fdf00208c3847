"""The questions about offsets, whoever answers them: the broker or a cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commit, Commits, IsolationLevel, LogRange, TopicPartition


class LogIdsReader(Protocol):
    """The questions about the identity of logs, which every client answers."""

    def cluster_id(self) -> str:
        """Return the id of the cluster; empty if the broker does not say."""

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics."""


class PositionsReader(LogIdsReader, Protocol):
    """The questions about groups and logs that every client answers, also that in a Spark driver's JVM."""

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of topics; one that does not exist is not in the result."""

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` where it has none."""

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return what the logs hold."""


class OffsetsReader(PositionsReader, Protocol):
    """The questions of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` that change nothing."""

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all commits of a group."""

    def sees_all_topics(self) -> bool:
        """Return whether the user may see all topics, as far as that can be known."""

    def assigned(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions that the members of a group read, as far as they are known."""

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
        """Return when the first record at or after each offset was written."""

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the settings of topics that decide when records are deleted, or why there is no answer."""
