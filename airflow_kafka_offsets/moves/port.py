"""
What the writer needs of a client.

librdkafka's :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` has all of it, the client in a Spark
driver's JVM what a streaming query needs. What changes a group is called by
:mod:`airflow_kafka_offsets.moves.write` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.kafka.groups import GroupDescription
from airflow_kafka_offsets.kafka.reader import LogIdsReader
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition


class CommitPort(LogIdsReader, Protocol):
    """The calls that commit to a group without members, and read it back."""

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` where it has none."""

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """
        Commit offsets.

        :param metadata: a text that is kept with each of them, or topic -> its text.
        :param check: given the group's commits right before they are overwritten, and again before another
            attempt; what it raises ends the commit.
        """


class GroupPort(CommitPort, Protocol):
    """Those, and the calls that only a client of its own can make: of whole groups, and as their member."""

    def prove_commit(self, group_id: str, topics: Iterable[str]) -> None:
        """Check that this user may commit to a group, for some topics; nothing is written."""

    def commit_fenced(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        left: Callable[[Commits], Offsets],
    ) -> Offsets:
        """
        Commit offsets as a member of the group, so that nobody commits between the comparison and the write.

        :param left: given the group's commits, returns what is left to write; what it raises
            ends the commit.
        :return: what was written, and read back.
        """

    def describe_groups(self, group_ids: Iterable[str]) -> Mapping[str, GroupDescription]:
        """Return state and members of groups; one that does not exist is ``Dead``."""

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, str | None]:
        """Delete a group's commits; partition -> ``None`` if it has none any more, else the reason."""

    def delete_groups(self, group_ids: Iterable[str]) -> Mapping[str, str | None]:
        """Delete groups with all their offsets; group -> ``None`` if it was deleted, else the reason."""
