"""
Commits offsets so that no other client can commit between the comparison and the commit.

It uses Kafka's group membership: the committer joins the group first. While a group has members, the broker
refuses all other commits. A member's commit carries the *generation* of the group, which changes as soon as a
member joins or leaves. So in one generation the committer joins, checks that all partitions are assigned to
it, reads the group's commits, compares, commits, reads back and leaves. It never reads records. This takes
0.1 s, or the broker's ``group.initial.rebalance.delay.ms`` (3 s by default).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerError, GroupActiveError, PlanRefusedError
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.commits import ATTEMPT, CommitState, check_commit, commit_chunks
from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connection, Connections
from airflow_kafka_offsets.kafka.explain import (
    Call,
    active_group_error,
    commit_error,
    describe_outcome,
    rest_refused_error,
)
from airflow_kafka_offsets.kafka.failures import ACTIVE_GROUP, OCCUPIED, BackgroundErrors, CallError, Failure
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.kafka.groups import COMMITTER
from airflow_kafka_offsets.kafka.requests import missing_partitions, read_cluster_id, send_commit
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    Offsets,
    TopicPartition,
    committed_offsets,
    summarize,
)

SESSION_TIMEOUT_MS = 10_000
"""How long a member that died blocks the group. The broker's default minimum is 6 s."""

_AGAIN = ACTIVE_GROUP | {OCCUPIED}
# Seconds: joining takes at least 0.1 s, so this delay does not matter.
_POLL = 0.01
# Seconds to leave the group: a member that does not leave blocks the group for SESSION_TIMEOUT_MS.
_CLOSE = 5.0


class FencedCommit:
    """
    One commit to one group; the group is described before it is joined.

    :param offsets_to_commit: called with the group's commits; returns the offsets that are left to write, or
        refuses a group at another position.
    """

    def __init__(
        self,
        session: Session,
        admin: Admin,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str],
        offsets_to_commit: Callable[[Commits], Offsets],
    ) -> None:
        self._texts = check_commit(group_id, offsets, metadata)
        self._commits = GroupCommits(session, admin, group_id)
        self._config = {
            **session.config,
            "client.id": f"{session.config.get('client.id', OWN_GROUP)}{COMMITTER}",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "partition.assignment.strategy": "range",
        }
        self._admin = admin
        self._session = session
        self._group_id = group_id
        self._offsets = offsets
        self._offsets_to_commit = offsets_to_commit
        self._todo: Offsets = {}
        self._written: Offsets = {}
        self._uncertain = False
        self._background_errors = BackgroundErrors()

    def run(self, call: Call) -> Offsets:
        """Compare and commit; return the offsets that were written."""
        if not self._offsets:
            return {}
        try:
            retry_until(call, lambda _: self._attempt(call), lambda: self._background_errors, passing=_AGAIN)
        except CallError as error:
            raise self._explain(error.failure, call) from None
        except PlanRefusedError as error:
            if not (self._written or self._uncertain):
                raise
            raise rest_refused_error(
                call, self._offsets, self._written, error, uncertain=self._uncertain, retriable=False
            ) from None
        return self._written

    def _attempt(self, call: Call) -> None:
        self._refuse_members(call)
        # New connections for each attempt: the previous client would join again automatically.
        connections = Connections(self._config, self._group_id)
        try:
            connection = connections.get()
            self._background_errors = connection.background_errors
            self._session.check_cluster({read_cluster_id(connection, call.seconds_left)})
            member = _Member(connection)
            member.join(sorted({tp.topic for tp in self._offsets}), call)
            member.check_assigned(self._offsets)
            commits = self._read(call)
            # The commits of earlier attempts, even if a response was lost; no other client writes the same
            # metadata.
            mine = {tp: Commit(end, self._texts[tp.topic]) for tp, end in self._todo.items()}
            self._written = {tp: each.offset for tp, each in mine.items() if commits[tp] == each}
            # What is not there may still appear.
            self._uncertain &= len(self._written) < len(self._todo)
            todo = self._offsets_to_commit(commits)
            self._todo |= todo
            for part in commit_chunks(self._group_id, todo, self._texts):
                member.check_assigned(part)
                self._commit(connection, part, call)
            # If members changed, other clients may have moved the group; the broker has confirmed each
            # partition.
            if todo and not member.over and self._offsets_to_commit(self._read(call)):
                raise CallError(Failure("_RETRY", "the offsets read back are not those that were committed"))
        finally:
            connections.close(_CLOSE)

    def _refuse_members(self, call: Call) -> None:
        """Refuse a group with members before the join disturbs them."""
        group = self._admin.describe_groups([self._group_id], call)[self._group_id]
        if group.is_occupied:
            raise CallError(Failure(OCCUPIED, f"group {self._group_id!r} is {group.state}"))
        if group.is_active:
            raise active_group_error(self._group_id, group.members, self._outcome())

    def _read(self, call: Call) -> Commits:
        try:
            return self._commits.read(call, self._offsets)
        except BrokerError as error:
            raise error.append(self._outcome()) from None

    def _commit(self, connection: Connection, part: Offsets, call: Call) -> None:
        def read_back(offsets: Offsets) -> list[TopicPartition]:
            # Until they were read back.
            self._uncertain = True
            found = committed_offsets(self._read(call))
            return [tp for tp, offset in offsets.items() if found[tp] == offset]

        state = CommitState(part, read_back)
        state.uncertain = self._uncertain
        try:
            results = send_commit(connection, part, self._texts, min(ATTEMPT, call.seconds_left))
        except CallError:
            self._uncertain = True
            raise
        for failure in results.values():
            if failure is not None and failure.code in ACTIVE_GROUP:
                raise CallError(failure)
        try:
            state.take_results(
                results, lambda unknown: missing_partitions(connection, unknown, call.seconds_left)
            )
        finally:
            self._written |= {tp: part[tp] for tp in state.written}
            self._uncertain = state.uncertain
        if state.refused:
            raise commit_error(
                self._group_id,
                self._offsets,
                sorted(self._written),
                state.failures,
                lambda failure: call.explain(failure, "Read", self._background_errors),
                uncertain=state.uncertain,
            )

    def _explain(self, failure: Failure, call: Call) -> BrokerError:
        if failure.code in ACTIVE_GROUP:
            return GroupActiveError(
                f"{call.what}: another client joined the group while it was compared ({failure}): stop the "
                f"other members and try again; {self._outcome()}",
                code=failure.code,
                retriable=True,
            )
        return call.explain(failure, "Read", self._background_errors).append(self._outcome())

    def _outcome(self) -> str:
        return describe_outcome(self._offsets, self._written, uncertain=self._uncertain)


class _Member:
    """
    A membership that reads no records and detects its own end.

    The client joins again automatically, but only after its poll has reported that the assignment is revoked.
    A commit sent before that carries the generation in which the commits were compared.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._assigned: frozenset[TopicPartition] | None = None
        self.over = False

    def join(self, topics: list[str], call: Call) -> None:
        self._connection.ask(
            lambda consumer: consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        )
        while self._assigned is None:
            errors = self._connection.background_errors
            refused = [each for each in errors.failures if each.code == "INVALID_SESSION_TIMEOUT"]
            if final := errors.fatal or next(iter(refused), None):
                raise CallError(final)
            if call.seconds_left <= 0:
                raise CallError(Failure("_TIMED_OUT", "the group did not accept the member"))
            self._connection.drain(_POLL)

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
