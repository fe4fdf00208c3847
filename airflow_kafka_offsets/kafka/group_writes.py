"""Commits offsets to a group without members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ClassVar

from airflow_kafka_offsets.errors import (
    BrokerError,
    ClientCrashedError,
    GroupActiveError,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.kafka.admin import FIRST_ATTEMPT, Admin
from airflow_kafka_offsets.kafka.commits import ATTEMPT, check_commit, commit_chunks
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import (
    Call,
    active_group_error,
    commit_error,
    describe_outcome,
    rest_refused_error,
)
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    NOT_SENT,
    NOTHING_WRITTEN,
    OCCUPIED,
    TEMPORARY,
    TOPIC_HIDDEN,
    UNCERTAIN,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Failure,
)
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.kafka.requests import missing_partitions
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import Commit, Commits, Offsets, TopicPartition

_AGAIN = ACTIVE_GROUP | {OCCUPIED}
"""With these errors the broker refuses the whole request; the next attempt sees who the members are."""

Results = Mapping[TopicPartition, Failure | None]
"""Partition -> ``None`` if it was committed, else the failure."""


class GroupWrite:
    """
    One commit to one group, sent until each partition is written or refused.

    Each attempt first describes the group, which must be a consumer group without members. Then it reads the
    commits: an earlier attempt without a response may be done by now, and other clients may have committed.

    :param metadata: a text for all topics, or topic -> its text.
    :param check: called right before each attempt with the commits that it overwrites; raises an error to end
        the commit. What this commit has written itself counts as not written. Default: whatever the commits
        are.
    """

    may_be_planned_again: ClassVar[bool] = True
    """Whether a retry may succeed after the check has refused the rest."""

    def __init__(
        self,
        session: Session,
        admin: Admin,
        group_id: str,
        offsets: Offsets,
        metadata: str | Mapping[str, str],
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        self._texts = check_commit(group_id, offsets, metadata)
        self._commits = GroupCommits(session, admin, group_id)
        self._session = session
        self._admin = admin
        self._group_id = group_id
        self._offsets = offsets
        self._check = check
        self._before: Commits = {}
        """The group's commits before the first attempt."""
        self._todo: Offsets = {}
        """What is not known to be written."""
        self._written: Offsets = {}
        self._unsure: set[TopicPartition] = set()
        """Partitions that were sent without a clear response: they may appear at any later read."""
        self._failures: dict[TopicPartition, Failure] = {}
        """The last failure of each partition."""
        self._refused = False
        """Whether a failure is permanent."""
        self._background_errors = BackgroundErrors()

    def run(self, call: Call) -> Offsets:
        """
        Commit, and return the offsets that were written.

        :raises GroupActiveError: if the group has members; names them.
        :raises PlanRefusedError: if it is a streams group, to which Kafka accepts commits, or a share group.
        :raises CommitError: if partitions were refused, or the check refused the rest.
        """
        reason: BrokerError | None = None
        attempt = partial(self._attempt, call)
        try:
            if self._offsets:
                retry_until(call, attempt, lambda: self._background_errors, _AGAIN, FIRST_ATTEMPT)
        except CallError as error:
            reason = self.explain(call, error.failure)
        except (GroupMovedError, PlanRefusedError) as error:
            # For callers these two errors mean that nothing was written.
            if not (self._written or self._unsure):
                raise
            raise rest_refused_error(
                call,
                self._offsets,
                self._written,
                error,
                uncertain=bool(self._unsure),
                retriable=self.may_be_planned_again,
            ) from None
        except BrokerError as error:
            reason = error
        if reason is not None or self._todo:
            raise self.make_error(call, reason)
        return self._written

    def prove_right(self, call: Call) -> None:
        """Check the right to commit the offsets, of partitions that no topic has: nothing is written."""

        def attempt(seconds: float) -> None:
            for failure in self._send(call, self._offsets, seconds).values():
                if failure is not None and failure.code not in UNKNOWN_PARTITION:
                    raise CallError(failure)

        try:
            retry_until(call, attempt, lambda: self._background_errors, first_attempt=FIRST_ATTEMPT)
        except CallError as error:
            raise self.explain(call, error.failure).append("nothing was changed") from None

    def _attempt(self, call: Call, seconds: float) -> None:
        try:
            self._refuse_members(call)
        except GroupActiveError:
            # They may have joined after a commit without a response.
            if not (self._unsure and self._is_done(call)):
                raise
            return
        self.write_once(call, seconds)

    def _is_done(self, call: Call) -> bool:
        found = self._read(call, self._offsets)
        self._mark_found(found)
        return not self._todo and all(self._is_ours(tp, commit) for tp, commit in found.items())

    def _refuse_members(self, call: Call) -> None:
        group = self._admin.describe_groups([self._group_id], call)[self._group_id]
        if group.kind_refusal:
            raise PlanRefusedError(group.kind_refusal)
        if group.is_occupied:
            raise CallError(Failure(OCCUPIED, f"group {self._group_id!r} is {group.state}"))
        if group.is_active:
            raise active_group_error(self._group_id, group.members)

    def write_once(self, call: Call, seconds: float) -> None:
        """Compare the group's commits, and send what is left to write once."""
        self._compare(call)
        for part in self._parts():
            try:
                results = self._send(call, part, seconds)
            except CallError as error:
                self._failures |= dict.fromkeys(part, error.failure)
                self._unsure |= part.keys()
                raise
            self._take_results(call, results)
            if self._refused:
                return

    def _compare(self, call: Call) -> None:
        """Find what an earlier attempt has written, and what is left to write."""
        wanted: Iterable[TopicPartition] = self._offsets
        if self._check is None and not self._unsure:
            # One partition of each topic, because most refusals concern all partitions of a topic.
            wanted = {tp.topic: tp for tp in wanted}.values()
        found = self._read(call, wanted)
        self._before = self._before or found
        self._mark_found(found)
        own = {tp: self._before.get(tp) for tp in self._written if self._is_ours(tp, found.get(tp))}
        todo = self._offsets_to_write({**found, **own})
        self._todo = {tp: offset for tp, offset in todo.items() if tp not in self._written}

    def _offsets_to_write(self, found: Commits) -> Offsets:
        """Return the offsets to write over the group's commits."""
        if self._check is not None:
            self._check(found)
        return self._offsets

    def _read(self, call: Call, partitions: Iterable[TopicPartition]) -> Commits:
        if self._failures:
            call = call.with_text(f"reading back the offsets of group {self._group_id!r}")
        return self._commits.read(call, partitions, "Read")

    def _parts(self) -> Iterable[Offsets]:
        """Return the offsets of each request."""
        return [dict(self._todo)] if self._todo else []

    def _send(self, call: Call, part: Offsets, seconds: float) -> Results:
        """Send a part once; raise :class:`CallError` if its result is unknown."""
        parts = list(commit_chunks(self._group_id, part, self._texts))
        within = call.with_timeout(min(ATTEMPT, seconds))
        try:
            return self._admin.commit(self._group_id, parts, self._texts, within, self._background_errors)
        except ClientCrashedError as error:
            # The client also crashes if a coordinator has just moved.
            raise CallError(Failure("_RETRY", str(error))) from None

    def _take_results(self, call: Call, results: Results) -> None:
        """
        Record the result of each partition; raise :class:`CallError` if another attempt may help.

        Refused partitions are read back, because some of them may be written, unless the error concerns all
        partitions.
        """
        self._mark_written(tp for tp, failure in results.items() if failure is None)
        failures = {tp: failure for tp, failure in results.items() if failure is not None}
        self._failures |= failures
        self._unsure |= {tp for tp, failure in failures.items() if failure.code in UNCERTAIN}
        codes = {failure.code for failure in failures.values()}
        # Another client may have committed the same offsets to a topic that this user must not commit to.
        one_topic = len({tp.topic for tp in results}) == 1
        if codes - (NOTHING_WRITTEN | UNCERTAIN | ({TOPIC_HIDDEN} if one_topic else set())):
            unsure = {*self._unsure}
            # Until they were read back.
            self._unsure |= failures.keys()
            self._mark_found(self._read(call, failures))
            self._unsure &= unsure
        left = {tp: failure for tp, failure in failures.items() if tp in self._todo}
        unknown = [tp for tp, failure in left.items() if failure.code in UNKNOWN_PARTITION]
        absent = missing_partitions(self._connection(), unknown, call.seconds_left) if unknown else ()
        again = [
            failure for tp, failure in left.items() if failure.code in TEMPORARY | _AGAIN and tp not in absent
        ]
        self._refused = len(again) < len(left)
        # A retry for the other partitions does not help a partition that was refused permanently.
        if again and not self._refused:
            raise CallError(again[-1])

    def _mark_found(self, found: Commits) -> None:
        """Record as written what was sent without a clear response, and is found."""
        self._mark_written(
            tp for tp, commit in found.items() if tp in self._unsure and self._is_ours(tp, commit)
        )

    def _mark_written(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in [*partitions]:
            self._written[tp] = self._offsets[tp]
            self._todo.pop(tp, None)
            self._unsure.discard(tp)

    def _is_ours(self, tp: TopicPartition, commit: Commit | None) -> bool:
        return commit == Commit(self._offsets[tp], self._texts[tp.topic])

    def _connection(self) -> Connection:
        """Return the connection to look up topics."""
        return self._session.connections.get()

    def explain(self, call: Call, failure: Failure) -> BrokerError:
        """Return the error for a failure of the whole call."""
        return call.explain(failure, "Read", self._background_errors)

    def make_error(self, call: Call, reason: BrokerError | None) -> BrokerError:
        """Return the error to raise; ``reason``, if any, has ended the attempts."""
        named = isinstance(reason, GroupActiveError) or not (self._failures and self._todo)
        if reason is not None and named:
            return reason.append(self._outcome)
        return commit_error(
            self._group_id,
            self._offsets,
            sorted(self._written),
            {tp: self._failures.get(tp, NOT_SENT) for tp in self._todo},
            partial(self.explain, call),
            uncertain=bool(self._unsure),
            retriable=not self._refused,
            reason=reason,
        )

    @property
    def _outcome(self) -> str:
        return describe_outcome(self._offsets, self._written, uncertain=bool(self._unsure))
