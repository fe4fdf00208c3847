"""When may a query's offsets be committed to a group, and how is it known that they were?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_kafka_offsets.errors import CommitError, KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, foreign_query
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize

_AHEAD = "GROUP_AHEAD"


class HeldOffset(Protocol):
    """What a group holds for a partition."""

    @property
    def offset(self) -> int:
        """The next record that it would read."""

    @property
    def metadata(self) -> str | None:
        """The text that was committed with it."""


class GroupClient(Protocol):
    """The part of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` that a commit needs."""

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HeldOffset | None]:
        """Return what a group holds; ``None`` where it has no commit."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets to a group that has no active members."""

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps the offsets of a group without members; ``None`` if it does not tell."""

    def close(self) -> None:
        """Close the connections."""


def refuse_other_query(
    group_id: str, held: Mapping[TopicPartition, HeldOffset | None], query_id: str
) -> None:
    """
    Refuse to commit to a group that follows another query.

    :param held: what the group holds.
    :raises PlanRefusedError: if the last commit of a partition was made for another query.
    """
    texts = {tp: commit.metadata for tp, commit in held.items() if commit is not None}
    refusal = foreign_query(group_id, texts, query_id)
    if refusal:
        raise PlanRefusedError([refusal])


def commit_forward(
    client: GroupClient,
    group_id: str,
    offsets: Offsets,
    held: Mapping[TopicPartition, HeldOffset | None],
    metadata: CommitMetadata,
    query: str,
) -> None:
    """
    Commit offsets and read them back; where the group is ahead of them, they are left out.

    :param held: what the group holds now.
    :param query: what to call the query in a message.
    :raises CommitError: if the group is ahead somewhere, a partition was refused, or does not hold what was committed.
    """
    ahead = {tp: commit.offset for tp, commit in held.items() if commit and commit.offset > offsets[tp]}
    after = {tp: offset for tp, offset in offsets.items() if tp not in ahead}
    if after:
        client.commit(group_id, after, metadata.text(len(after)))
        _read_back(client, group_id, after)
    if ahead:
        first = min(ahead)
        raise CommitError(
            f"group {group_id!r} is ahead of query {query} on {summarize(ahead)} ({first}: {ahead[first]}, the query "
            f"has finished {offsets[first]}), and a commit never goes backwards: it follows again when the query has "
            "come that far, or after a reset of the group",
            failed=dict.fromkeys(ahead, _AHEAD),
            written=tuple(after),
        )


def is_refusal(error: KafkaOffsetsError) -> bool:
    """Whether an error means that a commit must not be made, and not that it could not be."""
    return isinstance(error, PlanRefusedError) or (
        isinstance(error, CommitError) and _AHEAD in error.failed.values()
    )


def _read_back(client: GroupClient, group_id: str, offsets: Offsets) -> None:
    held = client.committed(group_id, offsets)
    lost = [
        tp for tp, offset in offsets.items() if (commit := held.get(tp)) is None or commit.offset < offset
    ]
    if lost:
        raise CommitError(
            f"group {group_id!r} was committed, but does not hold the offsets of {summarize(lost)} when read back: "
            "somebody else writes to it",
            failed=dict.fromkeys(lost, "NOT_READ_BACK"),
            retriable=True,
        )
