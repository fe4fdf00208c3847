"""Who is in a group, and which groups are there?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.config import SERVERS, scrubber
from airflow_kafka_offsets.kafka.failures import RETRIABLE, Causes, Deadline, Failed, Failure, Right, explain
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.names import check_known_group
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.text import printable

INACTIVE_STATES = ("Empty", "Dead")

COMMITTER = "-window-commit"
"""Ends the client id of a member that only commits a window, so that others wait for it."""


@dataclass(frozen=True)
class GroupMember:
    """A consumer that joined a group."""

    member_id: str
    """Its id, chosen by the broker or the client."""
    client_id: str
    """``client.id`` of its configuration."""
    host: str
    """Where it connects from."""
    partitions: tuple[TopicPartition, ...] = ()
    """What it reads now."""

    def __str__(self) -> str:
        return printable(f"{self.client_id} on {self.host.lstrip('/')}")


@dataclass(frozen=True)
class GroupDescription:
    """What the broker says about a group."""

    group_id: str
    """Its name."""
    state: str
    """As Kafka spells it: ``Empty``, ``Stable``, ``PreparingRebalance``, ...; ``Dead`` if there is no such group."""
    type: str = "unknown"
    """``classic``, ``consumer``, or ``unknown``."""
    members: tuple[GroupMember, ...] = ()
    """Who joined it."""
    coordinator: str | None = None
    """``host:port`` of the broker that keeps it."""

    @property
    def active(self) -> bool:
        """Whether only its members may commit; every state but Empty and Dead counts."""
        return self.state not in INACTIVE_STATES

    @property
    def occupied(self) -> bool:
        """Whether it is active only because a window is being committed to it, which passes."""
        return self.active and all(member.client_id.endswith(COMMITTER) for member in self.members)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; partitions as ``topic-0``."""
        members = [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host.lstrip("/"),
                "partitions": [str(tp) for tp in member.partitions],
            }
            for member in self.members
        ]
        return {
            "group_id": self.group_id,
            "state": self.state,
            "type": self.type,
            "members": members,
            "coordinator": self.coordinator,
        }


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
        return {"group_id": self.group_id, "state": self.state, "type": self.type}


class GroupCalls:
    """
    Asks for groups, each time in a child process.

    :param config: from :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._admin = AdminProcess(config)
        self._servers = str(config.get(SERVERS))
        self._scrub = scrubber(config)

    def describe(self, group_ids: Sequence[str], deadline: Deadline) -> dict[str, GroupDescription]:
        """Return state and members of groups; a group that does not exist is ``Dead``."""
        described: dict[str, GroupDescription] = {}
        for group_id, (value, failure) in self._each("describ", "describe", group_ids, deadline).items():
            if failure is None:
                described[group_id] = _description(value)
            elif failure.code == "GROUP_ID_NOT_FOUND":
                # Since Kafka 4.0; older brokers say Dead.
                described[group_id] = GroupDescription(group_id, "Dead")
            else:
                raise self._explain(f"describing group {group_id!r}", failure, deadline)
        return described

    def list(self, states: Iterable[str] | None, deadline: Deadline) -> list[GroupListing]:
        """Return the groups in one of these states, or all."""
        kept = None if states is None else {state.lower() for state in states}
        found = [
            GroupListing(**group) for group in self._admin.call("listing groups", "list", None, deadline)
        ]
        return sorted(
            (group for group in found if kept is None or group.state.lower() in kept),
            key=lambda group: group.group_id,
        )

    def delete(self, group_ids: Sequence[str], deadline: Deadline) -> dict[str, str | None]:
        """Delete groups; return ``None`` for each that was deleted, else why not."""
        results: dict[str, str | None] = {}
        for group_id, (_, failure) in self._each("delet", "delete", group_ids, deadline).items():
            if failure is None:
                results[group_id] = None
            elif failure.code == "NON_EMPTY_GROUP":
                results[group_id] = "the group has active members: stop them first"
            elif failure.code == "GROUP_ID_NOT_FOUND":
                results[group_id] = "there is no such group"
            else:
                what = f"deleting group {group_id!r}"
                results[group_id] = str(self._explain(what, failure, deadline, "Delete"))
        return results

    def retention_minutes(self, deadline: Deadline) -> int | None:
        """Return the broker's ``offsets.retention.minutes``; ``None`` if it does not tell."""
        try:
            value = self._admin.call("reading the broker's configuration", "retention", None, deadline)
        except (BrokerError, SetupError):
            return None
        return int(value) if value is not None and str(value).isdecimal() else None

    def _each(
        self, verb: str, name: str, group_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, tuple[Any, Failure | None]]:
        wanted = sorted({check_known_group(group_id) for group_id in group_ids})
        what = f"{verb}ing group {', '.join(map(printable, wanted[:5]))}"
        found: dict[str, tuple[Any, Failure | None]] = {}

        def attempt(_: float) -> None:
            todo = [group_id for group_id in wanted if group_id not in found]
            again: Failure | None = None
            for group_id, (value, failure) in self._admin.call(what, name, todo, deadline).items():
                said = Failure(*failure).scrubbed(self._scrub) if failure else None
                if said is not None and said.code in RETRIABLE:
                    again = said
                else:
                    found[group_id] = (value, said)
            if again is not None:
                raise Failed(again)

        try:
            if wanted:
                until(deadline, attempt, Causes)
        except Failed as error:
            raise self._explain(what, error.failure, deadline) from None
        return found

    def _explain(
        self, what: str, failure: Failure, deadline: Deadline, needs: Right = "Describe"
    ) -> BrokerError:
        return explain(what, failure, Causes(), self._servers, deadline.timeout, needs)


def name_members(members: Iterable[GroupMember], limit: int = 5) -> str:
    """Name the members of a group, as many as a reader wants to see."""
    names = [str(member) for member in members]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _description(answer: Mapping[str, Any]) -> GroupDescription:
    return GroupDescription(
        group_id=answer["group_id"],
        state=answer["state"],
        type=answer["type"],
        members=tuple(
            GroupMember(
                member_id=member["member_id"],
                client_id=member["client_id"],
                host=member["host"],
                partitions=tuple(
                    sorted(TopicPartition(topic, number) for topic, number in member["partitions"])
                ),
            )
            for member in answer["members"]
        ),
        coordinator=answer["coordinator"],
    )
