"""
The calls of a client that the writer needs.

librdkafka's :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` has all of them, and describes
them. The client in a Spark driver's JVM has those that a streaming query needs. Only
:mod:`airflow_kafka_offsets.moves.write` calls the methods that change a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.kafka.groups import GroupDescription
from airflow_kafka_offsets.kafka.reader import PositionsReader
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition


class CommitPort(PositionsReader, Protocol):
    """The calls that commit to a group without members and read the commits back."""

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """Commit offsets; ``check`` gets the commits right before they are overwritten, at each attempt."""


class GroupPort(CommitPort, Protocol):
    """The calls of :class:`CommitPort`, and those that only librdkafka's client has."""

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        """Check that this user may commit to a group for some topics, without writing."""

    def commit_fenced(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        offsets_to_commit: Callable[[Commits], Offsets],
    ) -> Offsets:
        """Commit as a member of the group; ``offsets_to_commit`` gets its commits, returns what to write."""

    def describe_groups(self, group_ids: Iterable[str]) -> Mapping[str, GroupDescription]:
        """Return state and members of groups; a group that does not exist is ``Dead``."""

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, str | None]:
        """Delete a group's commits; partition -> ``None`` if it has none any more, else the reason."""

    def delete_groups(self, group_ids: Iterable[str]) -> Mapping[str, str | None]:
        """Delete groups with all their offsets; return group -> ``None`` if it was deleted, or the error."""
