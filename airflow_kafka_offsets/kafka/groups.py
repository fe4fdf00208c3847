"""Consumer groups and their members, as the broker describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.text import escape_controls, shorten

INACTIVE_STATES = ("Empty", "Dead")

OTHER = "other"
"""Type of a group that is not a consumer group."""

GroupState = Literal[
    "Empty",
    "Dead",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Unknown",
]
"""States of groups, as Kafka spells them."""

COMMITTER = "-window-commit"
"""The end of the client id of a member that only commits a window: others wait for it."""


@dataclass(frozen=True)
class GroupMember:
    """A consumer that joined a group."""

    member_id: str
    """Its id, chosen by the broker or the client."""
    client_id: str
    """``client.id`` of its configuration."""
    host: str
    """The address it connects from."""
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions that it reads now."""

    def __str__(self) -> str:
        return escape_controls(f"{self.client_id} on {self.host.lstrip('/')}")


@dataclass(frozen=True)
class GroupDescription:
    """State and members of a group."""

    group_id: str
    """Its name."""
    state: str
    """
    In Kafka's spelling: ``Empty``, ``Stable``, ``PreparingRebalance``, ...; ``Dead`` if it is not there,
    ``Unknown`` for a group of another type.
    """
    type: str = "unknown"
    """``classic``, ``consumer``, ``other`` for a share or streams group, or ``unknown``."""
    members: tuple[GroupMember, ...] = ()
    """The consumers that joined it."""
    coordinator: str | None = None
    """``host:port`` of its coordinator."""

    @property
    def is_active(self) -> bool:
        """Whether only its members may commit; every state but Empty and Dead counts."""
        # Named are those that let others commit, so that a state which a later Kafka adds counts as active.
        return self.state not in INACTIVE_STATES

    @property
    def is_occupied(self) -> bool:
        """Whether it is active only because a window is being committed to it, which passes."""
        # One real consumer among them is enough: it does not go away by itself within seconds.
        committing = all(member.client_id.endswith(COMMITTER) for member in self.members)
        return self.is_active and committing and not self.kind_refusal

    @property
    def kind_refusal(self) -> str | None:
        """Why its offsets must not be moved: it is not a consumer group; ``None`` for one that is."""
        if self.type != OTHER:
            return None
        return (
            f"group {self.group_id!r} is not a consumer group: a share, streams or Connect group has this "
            "name, and its offsets are not to be moved; name another group"
        )

    @classmethod
    def from_worker(cls, described: Mapping[str, Any]) -> GroupDescription:
        """Take what the admin worker has returned."""
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
        return {**asdict(self), "members": members}


@dataclass(frozen=True)
class GroupListing:
    """A group as a list of all groups shows it."""

    group_id: str
    """Its name."""
    state: str
    """As in :class:`GroupDescription`."""
    type: str = "unknown"
    """As in :class:`GroupDescription`."""

    def as_json(self) -> dict[str, str]:
        """Return plain JSON."""
        return asdict(self)


def name_members(members: Iterable[GroupMember], limit: int = 5) -> str:
    """Name the first members of a group."""
    names = [str(member) for member in members]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def check_states(states: Iterable[object]) -> set[str]:
    """
    Return states of groups in lower case; any case is read.

    :raises UsageError: if it is one text, or one is no state of a group.
    """
    known = {state.lower() for state in get_args(GroupState)}
    found = [states] if isinstance(states, str) else [*states]
    unknown = [state for state in found if not isinstance(state, str) or state.lower() not in known]
    if unknown or isinstance(states, str):
        choices = ", ".join(map(repr, get_args(GroupState)))
        raise UsageError(
            f"states: found {shorten(repr((unknown or found)[0]))}; expected a list of {choices}"
        )
    return {str(state).lower() for state in found}
