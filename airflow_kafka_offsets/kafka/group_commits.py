"""Reads commits of a group, and commits to a group without members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    ClientCrashedError,
    GroupMovedError,
    PlanRefusedError,
    SetupError,
)
from airflow_kafka_offsets.kafka.admin import FIRST_ATTEMPT, Admin
from airflow_kafka_offsets.kafka.commits import ATTEMPT, CommitState, Texts, check_commit, commit_chunks
from airflow_kafka_offsets.kafka.explain import Call, Right, commit_error, rest_refused_error
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    OCCUPIED,
    TOPIC_HIDDEN,
    UNCERTAIN,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Failure,
)
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupMember
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC, missing_partitions
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.session import INTERNAL, Session
from airflow_kafka_offsets.model.names import parse_existing_group
from airflow_kafka_offsets.model.offsets import (
    MAX_PARTITION,
    Commit,
    Commits,
    Offsets,
    TopicPartition,
    refuse_invalid_partitions,
)

log = logging.getLogger(__name__)

_DESCRIBE = 10.0
"""Seconds to look up a group's members after a refused commit."""


class GroupCommits:
    """The commits of one group; ``admin`` describes the group if it refuses a commit."""

    def __init__(self, session: Session, admin: Admin, group_id: str) -> None:
        self._session = session
        self._admin = admin
        self._group_id = parse_existing_group(group_id)

    def read(self, call: Call, partitions: Iterable[TopicPartition], needs: Right = "Describe") -> Commits:
        """Return the commits of partitions; ``None`` for missing commits and missing partitions."""
        wanted = sorted(dict.fromkeys(partitions))
        refuse_invalid_partitions(wanted)
        found = self._ask(call, wanted, needs) if wanted else {}
        return {tp: found.get(tp) for tp in wanted}

    def read_all(self, call: Call) -> dict[TopicPartition, Commit]:
        """Return the commits in all topics that the user may see."""
        found = self._ask(call, None)
        # Only these topics: a cluster may have a hundred thousand partitions.
        on_broker = self._session.topics(call, {tp.topic for tp in found}.difference(INTERNAL))
        if not found and not self._session.sees_all_topics(call) and not self._session.all_topics(call):
            self._refuse_user_without_topics(call)
        return {tp: commit for tp, commit in sorted(found.items()) if tp.topic in on_broker}

    def _ask(
        self, call: Call, wanted: Sequence[TopicPartition] | None, needs: Right = "Describe"
    ) -> dict[TopicPartition, Commit]:
        found = self._admin.read_commits({self._group_id: wanted}, call, needs)[self._group_id]
        if isinstance(found, BrokerError):
            raise found
        return found

    def commit(
        self,
        call: Call,
        offsets: Mapping[TopicPartition, int],
        texts: Texts,
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """
        Commit offsets.

        :param check: called with the group's commits right before they are overwritten, and before each
            further attempt; raises to end the commit.
        :raises CommitError: if partitions were refused, or the check raised after some were written.
        """
        # Read one partition of each topic first: most refusals concern all partitions of a topic.
        one_each = {tp.topic: tp for tp in offsets}.values()
        try:
            found = self.read(call, one_each if check is None else offsets, "Read")
        except BrokerError as error:
            raise error.append("nothing was written") from None
        if check is not None:
            # The last check before Kafka overwrites the commits, whatever they are by then.
            check(found)
        self._commit(call, offsets, texts, found, check)

    def prove_right(self, call: Call, topics: Iterable[str]) -> None:
        """Check the right to commit for some topics; nothing is written."""
        # No topic has the partition with the highest number.
        wanted = {TopicPartition(topic, MAX_PARTITION): 0 for topic in sorted(set(topics))}
        texts = check_commit(self._group_id, wanted, "")
        background_errors = BackgroundErrors()

        def attempt(seconds: float) -> None:
            for failure in self._send(call, wanted, texts, background_errors, seconds).values():
                if failure is not None and failure.code not in UNKNOWN_PARTITION:
                    raise CallError(failure)

        try:
            retry_until(call, attempt, lambda: background_errors, first_attempt=FIRST_ATTEMPT)
        except CallError as error:
            raise call.explain(error.failure, "Read", background_errors).append(
                "nothing was changed"
            ) from None

    def _send(
        self, call: Call, offsets: Offsets, texts: Texts, background_errors: BackgroundErrors, seconds: float
    ) -> dict[TopicPartition, Failure | None]:
        """Send a commit once; raise :class:`CallError` if its result is unknown."""
        parts = list(commit_chunks(self._group_id, offsets, texts))
        try:
            within = call.with_timeout(min(ATTEMPT, seconds))
            return self._admin.commit(self._group_id, parts, texts, within, background_errors)
        except ClientCrashedError as error:
            # The client also crashes if a coordinator has just moved.
            raise CallError(Failure("_RETRY", str(error))) from None

    def _refuse_user_without_topics(self, call: Call) -> None:
        """Raise an error with the missing right for a user who may not see any topic."""
        try:
            self.read(call, [TopicPartition(OFFSETS_TOPIC, 0)])
        except BrokerAuthenticationError as error:
            if error.code != TOPIC_HIDDEN:
                raise
            text = "this user may see no topic at all: grant it Describe on the topics that the group reads"
            raise BrokerAuthenticationError(f"{call.what}: {text}", code=error.code) from None

    def _commit(
        self,
        call: Call,
        offsets: Mapping[TopicPartition, int],
        texts: Texts,
        found: Commits,
        check: Callable[[Commits], object] | None,
    ) -> None:
        reading = call.with_text(f"reading back the offsets of group {self._group_id!r}")
        done = partial(_done, offsets, texts)
        state = CommitState(offsets, lambda pending: done(self.read(reading, pending)))
        background_errors = BackgroundErrors()
        reason: BrokerError | None = None

        def attempt(seconds: float) -> None:
            if state.last:
                # Other clients may have committed since the last check, and an earlier attempt without a
                # response may be done by now.
                now = self.read(reading, state.pending)
                state.mark_written(done(now) if state.uncertain else ())
                if check is not None and state.pending:
                    check({**found, **{tp: now[tp] for tp in state.pending}})
            if not state.pending:
                return
            try:
                results = self._send(call, state.pending, texts, background_errors, seconds)
            except CallError as error:
                state.fail_pending(error.failure, uncertain=True)
                raise
            state.mark_written([tp for tp, failure in results.items() if failure is None])
            codes = {failure.code for failure in results.values() if failure is not None}
            # With these errors the broker refuses the whole request.
            if codes & ACTIVE_GROUP:
                self._wait_if_occupied(call, state, uncertain=bool(codes & UNCERTAIN))
            state.take_results(
                results,
                lambda unknown: missing_partitions(
                    self._session.connections.get(), unknown, call.seconds_left
                ),
            )

        try:
            retry_until(call, attempt, lambda: background_errors, [OCCUPIED], FIRST_ATTEMPT)
        except CallError as error:
            reason = call.explain(error.failure, "Read", background_errors)
        except (GroupMovedError, PlanRefusedError) as error:
            if not (state.written or state.uncertain):
                raise
            # Callers take these two errors for a plan of which nothing was written.
            raise rest_refused_error(
                call, offsets, state.written, error, uncertain=state.uncertain, retriable=True
            ) from None
        except BrokerError as error:
            reason = error
        if state.pending or state.refused:
            raise commit_error(
                self._group_id,
                offsets,
                state.written,
                state.failures,
                lambda failure: call.explain(failure, "Read"),
                members=lambda: self._members(call),
                uncertain=state.uncertain,
                retriable=not state.refused,
                reason=reason,
            )

    def _wait_if_occupied(self, call: Call, state: CommitState, *, uncertain: bool) -> None:
        group = self._described(call)
        # The window's commit may have ended in the meantime.
        if group is not None and (group.is_occupied or not group.is_active):
            failure = Failure(OCCUPIED, f"group {self._group_id!r} is {group.state}")
            state.fail_pending(failure, uncertain=uncertain)
            raise CallError(failure)

    def _members(self, call: Call) -> Sequence[GroupMember]:
        group = self._described(call)
        return () if group is None else group.members

    def _described(self, call: Call) -> GroupDescription | None:
        try:
            return self._admin.describe_groups([self._group_id], call.with_timeout(_DESCRIBE))[self._group_id]
        except (BrokerError, SetupError) as error:
            log.debug("Could not look up the members of group %r: %s", self._group_id, error)
            return None


def _done(offsets: Mapping[TopicPartition, int], texts: Texts, commits: Commits) -> list[TopicPartition]:
    """Return the partitions whose commits are those of ``offsets`` and ``texts``."""
    return [tp for tp, commit in commits.items() if commit == Commit(offsets[tp], texts[tp.topic])]
