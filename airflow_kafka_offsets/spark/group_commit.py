"""Commits a query's offsets to a group that follows it, and reads them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.errors import CommitError, KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.kafka.log_ids import LogIdsReader
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, foreign_logs, foreign_query
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition, committed_offsets, summarize

_AHEAD = "GROUP_AHEAD"


class GroupClient(LogIdsReader, Protocol):
    """The part of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` that a commit needs."""

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` where it has none."""

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str | Mapping[str, str] = ""
    ) -> None:
        """Commit offsets to a group that has no active members."""

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps offsets of a group without members; ``None`` if unknown."""

    def close(self) -> None:
        """Close the connections."""


def refuse_other_logs(group_id: str, commits: Commits, now: LogIds) -> None:
    """Refuse to commit to a group of which the last commit was made on another cluster, or topic."""
    if refusals := foreign_logs(group_id, commits, now):
        raise PlanRefusedError(refusals)


def refuse_other_query(group_id: str, commits: Commits, query_id: str) -> None:
    """Refuse to commit to a group in which the last commit of a partition was made for another query."""
    if refusal := foreign_query(group_id, commits, query_id):
        raise PlanRefusedError([refusal])


def commit_forward(
    client: GroupClient,
    group_id: str,
    offsets: Offsets,
    commits: Commits,
    metadata: CommitMetadata,
    query: str,
    log_ids: LogIds,
) -> None:
    """
    Commit offsets and read them back; where the group is ahead of them, they are left out.

    :param commits: the group's commits before.
    :param query: the query's name in error texts.
    :param log_ids: the cluster and the topics, for the metadata.
    """
    ahead = {tp: commit.offset for tp, commit in commits.items() if commit and commit.offset > offsets[tp]}
    after = {tp: offset for tp, offset in offsets.items() if tp not in ahead}
    if after:
        client.commit(group_id, after, metadata.texts(after, log_ids))
        _read_back(client, group_id, after)
    if ahead:
        first = min(ahead)
        raise CommitError(
            f"group {group_id!r} is ahead of query {query} on {summarize(ahead)} ({first}: {ahead[first]}, "
            f"the query has finished {offsets[first]}), and a commit never goes backwards: it follows again "
            "when the query has come that far, or after a reset of the group",
            failed=dict.fromkeys(ahead, _AHEAD),
            written=tuple(after),
        )


def is_refusal(error: KafkaOffsetsError) -> bool:
    """Return whether an error means that the commit must not be made."""
    return isinstance(error, PlanRefusedError) or (
        isinstance(error, CommitError) and _AHEAD in error.failed.values()
    )


def _read_back(client: GroupClient, group_id: str, offsets: Offsets) -> None:
    found = committed_offsets(client.committed(group_id, offsets))
    if lost := [tp for tp, offset in offsets.items() if (at := found.get(tp)) is None or at < offset]:
        raise CommitError(
            f"group {group_id!r} was committed, but does not hold the offsets of {summarize(lost)} when read "
            "back: somebody else writes to it",
            failed=dict.fromkeys(lost, "NOT_READ_BACK"),
            retriable=True,
        )
