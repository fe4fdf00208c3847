"""Plans the deletion of groups: the offsets to save, and the groups that must not be deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.kafka.groups import GroupDescription, name_members
from airflow_kafka_offsets.model.offsets import Positions
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.readings.positions import group_positions

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


class DeletionPlan(NamedTuple):
    """The offsets of each group that may be deleted, and the refusals for the others."""

    before: Mapping[str, Positions]
    refusals: Mapping[str, str]


def plan_deletion(client: OffsetsClient, group_ids: Iterable[str]) -> DeletionPlan:
    """
    Read the offsets of groups to delete, after waiting for running commits of windows.

    :raises NoCommitError: if the broker may hide some of a group's offsets from this user, so they cannot be
        saved.
    """
    groups = client.settled_groups(group_ids)
    refusals = {name: why for name, found in groups.items() if (why := _refusal(found))}
    return DeletionPlan({name: _committed(client, name) for name in groups if name not in refusals}, refusals)


def _refusal(group: GroupDescription) -> str | None:
    if group.state == "Dead":
        return f"there is no group {group.group_id!r}: correct its name"
    if group.kind_refusal or not group.is_active:
        return group.kind_refusal
    return (
        f"group {group.group_id!r} is {group.state} with {len(group.members)} members "
        f"({name_members(group.members)}): only a group without members can be deleted; stop the members "
        "first"
    )


def _committed(client: OffsetsClient, group_id: str) -> Positions:
    """Return all committed offsets of a group; ``{}`` without commits."""
    try:
        return group_positions(client, group_id, TopicScope())
    except NoCommitError:
        # The group may have commits on topics that this user may not see, and these could not be saved.
        if client.sees_all_topics():
            return {}
        raise
