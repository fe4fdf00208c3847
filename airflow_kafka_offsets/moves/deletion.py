"""Plans deletions: of groups, and of a group's offsets in topics that it no longer reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import NoCommitError, PlanRefusedError
from airflow_kafka_offsets.kafka.groups import GroupDescription
from airflow_kafka_offsets.model.commit_origins import other_query_refusal
from airflow_kafka_offsets.model.offsets import Commit, Positions, TopicPartition, committed_offsets
from airflow_kafka_offsets.model.text import join_first
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.positions import group_positions


def plan_deletion(
    client: OffsetsClient, group_ids: Iterable[str]
) -> tuple[dict[str, Positions], dict[str, str]]:
    """
    Read the offsets of groups to delete, after waiting for running commits of windows.

    :return: the offsets of each group that may be deleted, and the refusals for the others.
    :raises NoCommitError: if the broker may hide some of a group's offsets from this user, so they cannot be
        saved.
    """
    groups = client.settled_groups(group_ids)
    refusals = {name: why for name, found in groups.items() if (why := _refusal(found))}
    return {name: _committed(client, name) for name in groups if name not in refusals}, refusals


def _refusal(group: GroupDescription) -> str | None:
    if group.state == "Dead":
        return f"there is no group {group.group_id!r}: correct its name"
    if group.kind_refusal or not group.is_active:
        return group.kind_refusal
    return f"{group.members_text}: only a group without members can be deleted; stop the members first"


def _committed(client: OffsetsClient, group_id: str) -> Positions:
    """Return all committed offsets of a group; ``{}`` without commits."""
    try:
        return group_positions(client, group_id, TopicScope())
    except NoCommitError:
        # The group may have commits on topics that this user may not see, and these could not be saved.
        if client.sees_all_topics():
            return {}
        raise


def plan_offset_deletion(
    client: OffsetsClient, group_id: str, scope: TopicScope
) -> dict[TopicPartition, Commit]:
    """
    Return the commits to delete from a group: those on the topics that the scope names.

    :raises PlanRefusedError: if the consumer group does not exist, its members read one of the topics, or a
        topic is not on the broker.
    """
    named = scope.topics or []
    partitions = scope.partitions_on_broker(_on_broker(client, scope))
    found = client.settled_groups([group_id])[group_id]
    if found.state == "Dead":
        raise PlanRefusedError(
            f"there is no group {group_id!r}: correct {parameter_text('group_id')} or the connection"
        )
    if found.kind_refusal:
        raise PlanRefusedError(found.kind_refusal)
    readers = [member for member in found.members if any(topic in named for topic, _ in member.partitions)]
    if readers:
        raise PlanRefusedError(
            f"members of group {group_id!r} read {', '.join(named)} ({join_first(readers)}): only offsets "
            "of topics that no member reads can be deleted; stop them first"
        )
    return {tp: commit for tp, commit in client.committed(group_id, partitions).items() if commit}


def plan_left_topics(
    client: OffsetsClient,
    group_ids: Iterable[str],
    scope: TopicScope,
    read: Collection[TopicPartition],
    query: str | None,
) -> dict[str, Positions]:
    """
    Return the offsets to delete: those of a pipeline's groups in topics that it no longer reads.

    Groups without such offsets are omitted.

    :param read: the partitions that the pipeline reads.
    :param query: the pipeline's query; empty if it has none, ``None`` if it may replace any query in the
        group.
    :raises KafkaOffsetsError: if there are such offsets, and the connection cannot delete them.
    """
    still = sorted({tp.topic for tp in read if scope.allows(tp.topic)})
    if still:
        raise PlanRefusedError(
            f"{parameter_text(scope.parameter)} names {', '.join(still)}, which the pipeline reads: omit it"
        )
    _on_broker(client, scope)
    there = [name for name, group in client.describe_groups(group_ids).items() if group.state != "Dead"]
    found = {group_id: plan_offset_deletion(client, group_id, scope) for group_id in there}
    others = [] if query is None else [other_query_refusal(*each, query) for each in found.items()]
    PlanRefusedError.raise_if([f"{parameter_text(scope.parameter)}: {other}" for other in others if other])
    left = {group_id: committed_offsets(commits) for group_id, commits in found.items() if commits}
    if left:
        client.check_offset_deletion()
    return left


def _on_broker(client: OffsetsClient, scope: TopicScope) -> dict[str, list[int]]:
    topics = scope.topics or []
    found = client.partitions(topics)
    missing = [topic for topic in topics if topic not in found]
    if missing:
        raise PlanRefusedError(
            f"topic {', '.join(missing)} is not on the broker: correct "
            f"{parameter_text(scope.parameter, ...)}, or omit it, since Kafka deletes the offsets of a "
            "deleted topic"
        )
    return found
