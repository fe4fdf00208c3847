"""Plans the deletion of a group's offsets in topics that it no longer reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.kafka.groups import name_members
from airflow_kafka_offsets.model.offsets import Positions, TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


@dataclass(frozen=True)
class OffsetDeletion:
    """The offsets of a group to delete."""

    group_id: str
    before: Positions


def plan_offset_deletion(client: OffsetsClient, group_id: str, scope: TopicScope) -> OffsetDeletion:
    """
    Read the offsets of a group in a scope with named topics.

    :return: a plan without offsets if the group has no commit in the scope.
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
            f"members of group {group_id!r} read {', '.join(named)} ({name_members(readers)}): only offsets "
            "of topics that no member reads can be deleted; stop them first"
        )
    commits = client.committed(group_id, partitions)
    return OffsetDeletion(group_id, {tp: commit.offset for tp, commit in commits.items() if commit})


def plan_left_topics(
    client: OffsetsClient, group_ids: Iterable[str], scope: TopicScope, read: Collection[TopicPartition]
) -> list[OffsetDeletion]:
    """
    Plan the deletion of a pipeline's offsets in topics that it no longer reads; omit groups without such
    offsets.

    :param read: the partitions that the pipeline reads.
    :raises PlanRefusedError: if the pipeline reads one of the topics, and as :func:`plan_offset_deletion`.
    """
    still = sorted({tp.topic for tp in read if scope.allows(tp.topic)})
    if still:
        raise PlanRefusedError(
            f"{parameter_text(scope.parameter)} names {', '.join(still)}, which the pipeline reads: omit it"
        )
    _on_broker(client, scope)
    states = client.describe_groups(group_ids)
    there = [group_id for group_id, group in states.items() if group.state != "Dead"]
    plans = [plan_offset_deletion(client, group_id, scope) for group_id in there]
    return [plan for plan in plans if plan.before]


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
