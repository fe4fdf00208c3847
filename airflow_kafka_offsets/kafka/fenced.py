"""
How is a window committed so that nobody can write between the comparison and the commit?

By Kafka's own means: whoever commits joins the group first. While a group has members the broker refuses the
commits of everybody else, and a member's commit carries the *generation* of its membership, which is another one
as soon as anybody joins or leaves. So in one generation: join, see that the window's partitions were assigned to
this member and to no other, read what the group holds, compare, commit, read back, leave. A member never reads
records here. It takes 0.1 s, or the broker's ``group.initial.rebalance.delay.ms`` (3 s by default).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import (
    BrokerError,
    CommitError,
    GroupActiveError,
    PlanRefusedError,
)
from airflow_kafka_offsets.kafka.commits import (
    ATTEMPT,
    CommitProgress,
    check_commit,
    commit_chunks,
    send_commit,
)
from airflow_kafka_offsets.kafka.config import SERVERS, client_config
from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connection, Connections
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    OCCUPIED,
    Causes,
    Deadline,
    Failed,
    Failure,
    explain,
)
from airflow_kafka_offsets.kafka.groups import COMMITTER, GroupCalls, GroupMember, name_members
from airflow_kafka_offsets.kafka.refusals import and_then, not_committed
from airflow_kafka_offsets.kafka.requests import missing_partitions, read_commits
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.window import OffsetWindow

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 10_000
"""How long a member that died keeps the group to itself. The broker's least is 6 s by default."""

_AGAIN = ACTIVE_GROUP | {OCCUPIED}
_POLL = 0.01
_CLOSE = 5.0


def commit_ranges(
    config: Mapping[str, Any],
    group_id: str,
    window: OffsetWindow,
    metadata: str = "",
    *,
    fenced: bool = True,
    timeout: float = 30.0,
) -> Offsets:
    """
    Commit the end of each range, if the group still stands at its beginning.

    A partition in which the group is at the end already is done. If it stands anywhere else in one of them,
    nothing is written.

    :param config: librdkafka's configuration; what concerns consuming is left out.
    :param group_id: the consumer group.
    :param window: the ranges; a partition of ``without_commit`` must not have a commit yet.
    :param metadata: a text that is kept with each offset.
    :param fenced: join the group, so that comparing and writing are one step. Without it another commit could
        come between the two.
    :param timeout: seconds for all of it.
    :return: what was written; empty if the group was at every end.
    :raises WindowMismatchError: if the group stands elsewhere.
    :raises GroupActiveError: if the group has other members.
    :raises BrokerError: if it could not be done, or not wholly; running it again finishes it.
    """
    # The client commits windows by what is in this module.
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    with OffsetsClient(config, timeout=timeout) as client:
        return client.commit_window(group_id, window, metadata, fenced=fenced)


class FencedCommit:
    """
    One window's commit to one group.

    :param config: from :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :param groups: asks who is in the group.
    :param chunk_size: partitions in one request that reads.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        groups: GroupCalls,
        group_id: str,
        window: OffsetWindow,
        metadata: str,
        *,
        chunk_size: int,
    ) -> None:
        check_commit(group_id, window.end, metadata)
        self._config = {
            **client_config(config),
            "client.id": f"{config.get('client.id', OWN_GROUP)}{COMMITTER}",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "partition.assignment.strategy": "range",
        }
        self._groups = groups
        self._group_id = group_id
        self._window = window
        self._metadata = metadata
        self._chunk_size = chunk_size
        self._what = f"committing a window to group {group_id!r}"
        self._todo: Offsets | None = None
        self._said: dict[TopicPartition, str | None] = {}
        self._written: Offsets = {}
        self._uncertain = False
        self._causes = Causes()

    def run(self, deadline: Deadline) -> Offsets:
        """Compare and commit; return what was written."""
        if not self._window.ranges:
            return {}
        try:
            until(deadline, lambda _: self._attempt(deadline), lambda: self._causes, also=_AGAIN)
        except Failed as error:
            raise self._explain(error.failure, deadline) from None
        except PlanRefusedError as error:
            if not self._written:
                raise
            raise self._half_done("; ".join(error.refusals)) from None
        return self._todo or {}

    def _attempt(self, deadline: Deadline) -> None:
        self._look_for_members(deadline)
        connections = Connections(self._config)
        try:
            connection = connections.get(self._group_id)
            self._causes = connection.causes
            member = _Member(connection)
            member.join(sorted({tp.topic for tp in self._window.ranges}), deadline)
            member.check(self._window.ranges)
            held = self._held(connection, deadline)
            if self._todo is not None:
                # What the attempt before has done, also where its answer was lost.
                self._written = {tp: end for tp, end in self._todo.items() if held[tp] == end}
                self._uncertain = False
            todo = self._compare(held)
            self._todo = todo if self._todo is None else self._todo
            for part in commit_chunks(self._group_id, todo, self._metadata):
                member.check(part)
                self._commit(connection, part, deadline)
            # Once somebody else is let in, the group may be anywhere, and the broker has confirmed each partition.
            if todo and not member.over and self._compare(self._held(connection, deadline)):
                raise Failed(Failure("_RETRY", "the offsets read back are not those that were committed"))
        finally:
            connections.close(_CLOSE)

    def _look_for_members(self, deadline: Deadline) -> None:
        """Refuse an active group before anything disturbs its members."""
        group = self._groups.describe([self._group_id], deadline)[self._group_id]
        if group.occupied:
            raise Failed(Failure(OCCUPIED, f"group {self._group_id!r} is {group.state}"))
        if group.active:
            raise self._active(group.members)

    def _held(self, connection: Connection, deadline: Deadline) -> Positions:
        partitions = sorted(self._window.ranges)
        held: Positions = {}
        for first in range(0, len(partitions), self._chunk_size):
            chunk = partitions[first : first + self._chunk_size]
            for tp, commit in read_commits(connection, chunk, max(0.1, deadline.left)).items():
                held[tp] = None if commit is None else commit.offset
                self._said[tp] = None if commit is None else commit.metadata
        return held

    def _compare(self, held: Positions) -> Offsets:
        return self._window.to_commit(f"group {self._group_id!r}", held, self._said)

    def _commit(self, connection: Connection, part: Offsets, deadline: Deadline) -> None:
        def read_back(offsets: Offsets) -> list[TopicPartition]:
            held = self._held(connection, deadline)
            return [tp for tp, offset in offsets.items() if held[tp] == offset]

        progress = CommitProgress(part, read_back)
        try:
            answers = send_commit(connection, part, self._metadata, min(ATTEMPT, deadline.left))
        except Failed:
            self._uncertain = True
            raise
        codes = {failure.code for failure in answers.values() if failure is not None}
        if codes & ACTIVE_GROUP:
            raise Failed(next(failure for failure in answers.values() if failure is not None))
        try:
            progress.take(answers, lambda unknown: missing_partitions(connection, unknown, deadline.left))
        finally:
            self._written |= {tp: part[tp] for tp in progress.written}
        if progress.refused:
            raise not_committed(
                self._group_id,
                self._window.end,
                sorted(self._written),
                progress,
                members=tuple,
                explained=lambda failure: self._explain(failure, deadline),
            )

    def _explain(self, failure: Failure, deadline: Deadline) -> BrokerError:
        if failure.code in ACTIVE_GROUP:
            return GroupActiveError(
                f"{self._what}: somebody else joined the group while it was compared ({failure}): stop the other members "
                f"and try again; {self._outcome()}",
                code=failure.code,
                retriable=True,
            )
        error = explain(
            self._what, failure, self._causes, str(self._config[SERVERS]), deadline.timeout, "Read"
        )
        return and_then(error, self._outcome())

    def _active(self, members: Sequence[GroupMember]) -> GroupActiveError:
        number = f"{len(members)} active member{'' if len(members) == 1 else 's'}"
        return GroupActiveError(
            f"group {self._group_id!r} has {number} ({name_members(members)}), and only they may commit: stop them and try "
            f"again; {self._outcome()}"
        )

    def _half_done(self, why: str) -> CommitError:
        left = [tp for tp in self._window.ranges if tp not in self._written]
        return CommitError(
            f"{self._what}: {self._outcome()}, and then the rest was refused: {why}",
            failed=dict.fromkeys(left, "WINDOW_MISMATCH"),
            written=sorted(self._written),
        )

    def _outcome(self) -> str:
        if self._uncertain:
            return "it is not known whether all of it was written; committing the window again is safe"
        if not self._written:
            return "nothing was written"
        return (
            f"{len(self._written)} of {len(self._window.ranges)} partitions were written ({summarize(self._written)}), and "
            "committing the window again finishes it"
        )


class _Member:
    """
    A membership that reads nothing, and knows when it is over.

    The client joins again by itself, but not before its poll has reported that the assignment is revoked. So what
    is sent while nothing was reported is sent in the generation that was compared in.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._assigned: frozenset[TopicPartition] | None = None
        self.over = False

    def join(self, topics: list[str], deadline: Deadline) -> None:
        self._connection.ask(
            lambda consumer: consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        )
        while self._assigned is None:
            final = self._connection.causes.final
            if final is not None:
                raise Failed(final)
            if deadline.left <= 0:
                raise Failed(Failure("_TIMED_OUT", "the group did not let it in"))
            self._connection.drain(_POLL)

    def check(self, partitions: Mapping[TopicPartition, object]) -> None:
        """
        See that some partitions are this member's, and still are.

        :raises Failed: if not.
        """
        if self.over or self._assigned is None:
            raise Failed(Failure("REBALANCE_IN_PROGRESS", "another member joined or left"))
        others = [tp for tp in partitions if tp not in self._assigned]
        if others:
            # Either another member has them, or the client did not know them yet.
            raise Failed(
                Failure("REBALANCE_IN_PROGRESS", f"{summarize(others)} was not assigned to this member")
            )

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._assigned = frozenset(TopicPartition(tp.topic, tp.partition) for tp in partitions)
        # Nothing is read: the assignment is for the broker only.
        consumer.assign([])

    def _on_revoke(self, _consumer: Consumer, _partitions: list[ClientPartition]) -> None:
        self.over = True
