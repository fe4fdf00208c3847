"""
Commits offsets so that no other client can commit between the comparison and the commit.

It uses Kafka's group membership: the committer joins the group first. While a group has members, the broker
refuses all other commits. A member's commit carries the *generation* of the group, which changes as soon as a
member joins or leaves. So in one generation the committer joins, checks that all partitions are assigned to
it, reads the group's commits, compares, commits, reads back and leaves. It never reads records. This takes
0.1 s, or the broker's ``group.initial.rebalance.delay.ms`` (3 s by default).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerError, GroupActiveError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.commits import ATTEMPT, commit_chunks
from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import ACTIVE_GROUP, CallError, Failure
from airflow_kafka_offsets.kafka.group_writes import GroupWrite, Results
from airflow_kafka_offsets.kafka.groups import COMMITTER
from airflow_kafka_offsets.kafka.requests import read_cluster_id, send_commit
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition, summarize

SESSION_TIMEOUT_MS = 10_000
"""How long a member that died blocks the group. The broker's default minimum is 6 s."""

# Seconds: joining takes at least 0.1 s, so this delay does not matter.
_POLL = 0.01
# Seconds to leave the group: a member that does not leave blocks the group for SESSION_TIMEOUT_MS.
_CLOSE = 5.0


class FencedCommit(GroupWrite):
    """
    One commit to one group, each attempt as its member; the group is described before it is joined.

    :param offsets_to_commit: called with the group's commits; returns the offsets that are left to write, or
        refuses a group at another position.
    """

    may_be_planned_again = False

    _member: _Member

    def __init__(
        self,
        session: Session,
        admin: Admin,
        group_id: str,
        offsets: Offsets,
        metadata: str | Mapping[str, str],
        offsets_to_commit: Callable[[Commits], Offsets],
    ) -> None:
        super().__init__(session, admin, group_id, offsets, metadata, offsets_to_commit)
        self._offsets_to_commit = offsets_to_commit

    def _offsets_to_write(self, found: Commits) -> Offsets:
        return self._offsets_to_commit(found)

    def write_once(self, call: Call, seconds: float) -> None:
        """Join the group, compare, write, read back and leave."""
        # New connections for each attempt: the previous client would join again automatically.
        connections = Connections(
            {
                **self._session.config,
                "client.id": f"{self._session.config.get('client.id', OWN_GROUP)}{COMMITTER}",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "partition.assignment.strategy": "range",
            },
            self._group_id,
        )
        try:
            self._member = member = _Member(connections.get())
            self._background_errors = member.connection.background_errors
            self._session.check_cluster(read_cluster_id(member.connection, call.seconds_left))
            member.join(sorted({tp.topic for tp in self._offsets}), call)
            member.check_assigned(self._offsets)
            super().write_once(call, seconds)
            # If members changed, other clients may have moved the group; the broker has confirmed each
            # partition.
            if self._written and not (member.over or self._refused):
                self._read_back(call)
        finally:
            connections.close(_CLOSE)

    def _parts(self) -> Iterator[Offsets]:
        for part in commit_chunks(self._group_id, dict(self._todo), self._texts):
            self._member.check_assigned(part)
            yield part

    def _send(self, call: Call, part: Offsets, seconds: float) -> Results:  # noqa: ARG002
        return send_commit(self._member.connection, part, self._texts, min(ATTEMPT, call.seconds_left))

    def _read_back(self, call: Call) -> None:
        if lost := self._offsets_to_write(self._read(call, self._offsets)).keys():
            self._written = {tp: offset for tp, offset in self._written.items() if tp not in lost}
            self._unsure |= lost
            raise CallError(Failure("_RETRY", "the offsets read back are not those that were committed"))

    def _connection(self) -> Connection:
        return self._member.connection

    def explain(self, call: Call, failure: Failure) -> BrokerError:
        """Return the error for a failure; that of another member says that it joined after the comparison."""
        if failure.code not in ACTIVE_GROUP:
            return super().explain(call, failure)
        return GroupActiveError(
            f"{call.what}: another client joined the group while it was compared ({failure}): stop the other "
            "members and try again",
            code=failure.code,
            retriable=True,
        )

    def make_error(self, call: Call, reason: BrokerError | None) -> BrokerError:
        """Return the error to raise, which is ``reason`` if there is one."""
        return super().make_error(call, reason) if reason is None else reason.append(self._outcome)


class _Member:
    """
    A membership that reads no records and detects its own end.

    The client joins again automatically, but only after its poll has reported that the assignment is revoked.
    A commit sent before that carries the generation in which the commits were compared.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._assigned: frozenset[TopicPartition] | None = None
        self.over = False

    def join(self, topics: list[str], call: Call) -> None:
        self.connection.ask(
            lambda consumer: consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        )
        while self._assigned is None:
            errors = self.connection.background_errors
            refused = [each for each in errors.failures if each.code == "INVALID_SESSION_TIMEOUT"]
            if final := errors.fatal or next(iter(refused), None):
                raise CallError(final)
            if call.seconds_left <= 0:
                raise CallError(Failure("_TIMED_OUT", "the group did not accept the member"))
            self.connection.drain(_POLL)

    def check_assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self.over or self._assigned is None:
            raise CallError(Failure("REBALANCE_IN_PROGRESS", "another member joined or left"))
        others = [tp for tp in partitions if tp not in self._assigned]
        if others:
            # Another member has the partitions, or the client did not know them yet.
            text = f"{summarize(others)} was not assigned to this member"
            raise CallError(Failure("REBALANCE_IN_PROGRESS", text))

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._assigned = frozenset(TopicPartition(tp.topic, tp.partition) for tp in partitions)
        # Read nothing: the assignment only matters to the broker.
        consumer.assign([])

    def _on_revoke(self, _consumer: Consumer, _partitions: list[ClientPartition]) -> None:
        self.over = True
