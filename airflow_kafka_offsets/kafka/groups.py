"""Consumer groups and their members, as the broker describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.text import escape_controls, join_first, plural, quote
from airflow_kafka_offsets.model.wording import parameter_error

OTHER = "other"
"""Type of a group that is not a consumer group."""

GroupState = Literal["Empty", "Dead", "Stable", "PreparingRebalance", "CompletingRebalance", "Unknown"]
"""States of groups in Kafka's spelling, as far as librdkafka knows them."""

COMMITTER = "-window-commit"
"""Suffix of the client id of a member that only commits a window: other commits wait for it."""


@dataclass(frozen=True)
class GroupMember:
    """A consumer in a group."""

    member_id: str
    """The member's id, chosen by the broker or the client."""
    client_id: str
    """``client.id`` of its configuration."""
    host: str
    """The address that the member connects from."""
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions that the member reads now."""
    instance_id: str = ""
    """``group.instance.id`` of a static member; empty for others."""

    def __str__(self) -> str:
        kept = "a static member, which Kafka keeps for its session.timeout.ms after it has stopped"
        static = f" ({self.instance_id!r}, {kept})" if self.instance_id else ""
        return escape_controls(f"{self.client_id} on {self.host.lstrip('/')}{static}")


@dataclass(frozen=True)
class GroupListing:
    """A group in a list of all groups."""

    group_id: str
    """The group's name."""
    state: str
    """
    The state in Kafka's spelling: ``Empty``, ``Stable``, ``PreparingRebalance``, ...; ``Dead`` for a missing
    group, ``Unknown`` for a group of another type, and for one that rebalances by Kafka's new protocol.
    """
    type: str = "unknown"
    """``classic``, ``consumer``, ``other`` for a share or streams group, or ``unknown``."""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class GroupDescription(GroupListing):
    """The state and members of a group."""

    members: tuple[GroupMember, ...] = ()
    """The members of the group."""
    coordinator: str | None = None
    """``host:port`` of the group's coordinator."""

    @property
    def is_active(self) -> bool:
        """Whether only the group's members may commit: true for every state except Empty and Dead."""
        # Lists the inactive states, so that a state that a later Kafka adds counts as active.
        return self.state not in ("Empty", "Dead")

    @property
    def members_text(self) -> str:
        """The state and the number of members, and the first of them, for an error text."""
        members = plural(len(self.members), "member")
        return f"group {self.group_id!r} is {self.state} with {members} ({join_first(self.members)})"

    @property
    def is_occupied(self) -> bool:
        """Whether the group is active only because a window is being committed to it, which ends soon."""
        # One real consumer among the members is enough: it does not leave within seconds.
        committing = all(member.client_id.endswith(COMMITTER) for member in self.members)
        return self.is_active and committing and not self.kind_refusal

    @property
    def kind_refusal(self) -> str | None:
        """Why the group's offsets must not be moved; ``None`` for a consumer group."""
        if self.type != OTHER:
            return None
        return (
            f"group {self.group_id!r} is not a consumer group: a share, streams or Connect group has this "
            "name, and its offsets cannot be moved; name another group"
        )

    @classmethod
    def from_worker(cls, described: Mapping[str, Any]) -> GroupDescription:
        """Create a description from the admin worker's result."""
        members = []
        for member in described["members"]:
            partitions = tuple(sorted(TopicPartition(*tp) for tp in member["partitions"]))
            members.append(GroupMember(**{**member, "partitions": partitions}))
        return cls(**{**described, "members": tuple(members)})

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; partitions as ``topic-0``."""
        members = [
            {**asdict(each), "host": each.host.lstrip("/"), "partitions": [str(tp) for tp in each.partitions]}
            for each in self.members
        ]
        return {**super().as_json(), "members": members}


def check_states(states: Iterable[object]) -> set[str]:
    """Return states of groups in lower case; the input may be in any case."""
    known = {state.lower() for state in get_args(GroupState)}
    found = [states] if isinstance(states, str) else [*states]
    unknown = [state for state in found if not isinstance(state, str) or state.lower() not in known]
    if unknown or isinstance(states, str):
        wrong, choices = (unknown or found)[0], ", ".join(map(repr, get_args(GroupState)))
        raise parameter_error("states", f": found {quote(wrong)}; expected a list of {choices}")
    return {str(state).lower() for state in found}
