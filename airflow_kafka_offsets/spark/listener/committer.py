"""Commits the finished offsets of a session's queries, before Kafka forgets their groups."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from airflow_kafka_offsets.errors import BrokerUnavailableError, CommitError, KafkaOffsetsError, SetupError
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import LISTENER
from airflow_kafka_offsets.model.commit_origins import check_group_follows, moves_after_batch, newest_move
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Commits
from airflow_kafka_offsets.moves.write import commit_forward
from airflow_kafka_offsets.spark.commit import driver_metadata
from airflow_kafka_offsets.spark.listener.queries import RunningQuery
from airflow_kafka_offsets.spark.listener.read_topics import check_topics_at_end, identify_topics
from airflow_kafka_offsets.spark.listener.runs import Attempt, Outcomes, Run, answer_or_none
from airflow_kafka_offsets.spark.listener.targets import Settings, Target, TargetOffsets, group_targets

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Minimum seconds between two commits of a running query: many batches may end in that time."""

GIVE_UP = 60.0
"""Seconds after a query's end during which its last commit is retried."""

# Seconds between attempts, doubled each time: a broker that is down for long is asked twice a minute.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Committer:
    """
    Follows queries, and commits their finished offsets.

    Events (:meth:`follow`, :meth:`record_finished`, :meth:`record_idle`, :meth:`record_ended`) are only
    recorded. :meth:`commit_due` makes the commits on the calling thread, and only for the newest state of
    each query.

    :param new_client: creates a client from the ``kafka.*`` settings of a source.
    """

    def __init__(
        self,
        new_client: Callable[[Mapping[str, str]], CommitPort],
        *,
        group_id: GroupIds | None = None,
        allow_new_query: bool = False,
        allow_new_cluster: bool = False,
    ) -> None:
        self._new_client = new_client
        self._group_id = group_id
        self._allow_new_query = allow_new_query
        self._allow_new_cluster = allow_new_cluster
        self._runs: dict[str, Run] = {}
        self._clients: dict[Settings, CommitPort] = {}
        self._flush_until = self._notice = 0.0
        self.outcomes = Outcomes()
        self._noting = threading.Lock()
        self._committing = threading.Lock()

    def queries(self) -> dict[str, RunningQuery]:
        """Return all followed queries by the ids of their runs."""
        return {run_id: run.query for run_id, run in self._followed().items()}

    def follow(self, run_id: str, query: RunningQuery) -> None:
        """Follow a query from now on."""
        run = Run(query, checkpoint_move=answer_or_none(query.newest_move))
        with self._noting:
            self._runs.setdefault(run_id, run)

    def record_finished(self, run_id: str, batch: int | None, ended_at: float | None = None) -> None:
        """Record that a query has finished a batch, and when it has ended: its offsets are committed."""
        with self._noting:
            run = self._runs.get(run_id)
            if run is not None:
                # A batch that is not committed yet came after any move of the checkpoint.
                run.batch = run.batch if run.wanted and batch is None else batch
                run.wanted = True
                run.first_batch = batch if run.first_batch is None else run.first_batch
                run.ended_at = run.ended_at or ended_at
                if ended_at and not run.attempts:
                    run.due_at = 0.0

    def record_idle(self, run_id: str) -> None:
        """Record that a query waits for data: commit new finished offsets, and the same after some time."""
        with self._noting:
            run = self._runs.get(run_id)
            if run is None:
                return
            run.idle = True
            due = run.committed_at is None or run.committed_at + run.refresh < time.monotonic()
        # Under load Spark drops events, also the event of a batch.
        if due or answer_or_none(run.query.sources) != run.sources:
            self.record_finished(run_id, None)

    def record_ended(self, run_id: str) -> None:
        """Record that a query has ended; commit its offsets a last time, then forget it."""
        self.record_finished(run_id, None, ended_at=time.monotonic())

    def commit_due(self) -> float | None:
        """Commit all due queries; return the seconds until the next is due, ``None`` without a query."""
        with self._committing:
            return self._step()

    def flush(self, timeout: float) -> None:
        """Commit all batches that have finished by now, with repeated attempts until ``timeout``."""
        deadline = self._flush_until = time.monotonic() + timeout
        self._notice_ends()
        for run_id, run in self._followed().items():
            # Under load Spark drops events, also the event of a batch.
            if run.ended_at is None:
                self.record_finished(run_id, None)
        # At least one pass: it begins when the commit on another thread has ended.
        while self._committing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                if self._wanted():
                    self._step(at_once=True)
            finally:
                self._committing.release()
            if not any(run.attempts for run in self._wanted()):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(_FIRST_PAUSE, left))
        self.record_late(timeout)

    def record_late(self, timeout: float) -> None:
        """Record the queries whose last commit is not done after ``timeout`` seconds."""
        text = f"its last commit was not done within {timeout:.3g} s; its next run does it"
        for run in self._followed().values():
            if run.wanted or run.busy:
                self.outcomes.record_incomplete(run.query, text)

    def close(self, timeout: float = GIVE_UP) -> None:
        """Forget all queries and close all clients; after ``timeout``, a running commit closes them."""
        with self._noting:
            runs = list(self._runs.values())
            self._runs.clear()
        for run in runs:
            if run.ended_at is not None:
                run.query.forget()
        if self._committing.acquire(timeout=timeout):
            try:
                self._close_unused_clients()
            finally:
                self._committing.release()

    def _step(self, *, at_once: bool = False) -> float | None:
        """Commit the queries that are due, or all that are wanted; return the seconds until the next."""
        now = time.monotonic()
        wanted = self._wanted()
        if not wanted or self._notice <= now:
            self._notice = now + QUIET_PERIOD
            self._notice_ends()
        for run in wanted or self._wanted():
            if at_once or run.due_at <= now:
                self._commit(run)
        if not at_once:
            self._ask_retention()
        self._forget_done()
        self._close_unused_clients()
        now = time.monotonic()
        pauses = [run.due_at - now if run.wanted else run.refresh for run in self._followed().values()]
        return max(0.0, min(pauses)) if pauses else None

    def _followed(self) -> dict[str, Run]:
        with self._noting:
            return dict(self._runs)

    def _wanted(self) -> list[Run]:
        return [run for run in self._followed().values() if run.wanted]

    def _notice_ends(self) -> None:
        """Record the ends of queries, because under load Spark drops events."""
        for run_id, run in self._followed().items():
            if run.ended_at is None and not answer_or_none(run.query.is_active):
                self.record_ended(run_id)

    def _commit(self, run: Run) -> None:
        """Commit the newest state of a query, and plan another attempt if one may fix a failure."""
        with self._noting:
            run.wanted, run.busy, batch = False, True, run.batch
        try:
            retry = self._commit_all(run, batch)
        finally:
            run.busy = False
        run.attempts = run.attempts + 1 if retry else 0
        run.due_at = 0.0 if run.committed_at is None else run.committed_at + PAUSE
        if retry:
            run.due_at = time.monotonic() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (run.attempts - 1))
            with self._noting:
                run.wanted = True

    def _commit_all(self, run: Run, batch: int | None) -> bool:
        """Commit to each group of a query; return whether another attempt may fix a failure."""
        retry, silent = False, dict[str, BrokerUnavailableError]()
        targets, batch = self._read_query(run, batch)
        for target, wanted in targets.items():
            if run.is_superseded(target, [*self._followed().values()]):
                continue
            try:
                # A cluster that did not answer for one group would not answer for the next either.
                if target.cluster in silent:
                    raise silent[target.cluster]
                self._commit_one(run, target, wanted, batch)
            except KafkaOffsetsError as error:  # try the next group
                if isinstance(error, BrokerUnavailableError):
                    silent[target.cluster] = error
                retry = retry or error.retriable
                self.outcomes.record_error(run.query, error, target)
            except Exception as failure:  # such as a library that cannot be imported
                log.debug("An unexpected error", exc_info=True)
                text = f"nothing was committed to group {target.group_id!r}: {failure!r}"
                self.outcomes.record_error(run.query, SetupError(text), target)
        return retry

    def _read_query(self, run: Run, batch: int | None) -> tuple[Mapping[Target, TargetOffsets], int | None]:
        """Return the finished offsets of a query by group, and its newest batch; no group after an error."""
        try:
            run.sources = run.query.sources()
            targets, without_group = group_targets(run.sources, self._group_id)
            if targets and batch is None:
                batch = run.query.newest_batch()
        except KafkaOffsetsError as refusal:
            self.outcomes.record_error(run.query, refusal)
            return {}, batch
        except Exception as failure:  # noqa: BLE001  # py4j, or a Spark that shuts down, may raise anything
            if run.first_batch is None:
                log.debug("Query %s does not report its finished offsets: %s", run.query.name, failure)
            else:
                text = f"Spark does not report the finished offsets, so nothing is committed: {failure}"
                self.outcomes.record_error(run.query, SetupError(text))
            return {}, batch
        for text in without_group:
            self.outcomes.record_without_group(run.query, text)
        return targets, batch

    def _commit_one(self, run: Run, target: Target, wanted: TargetOffsets, batch: int | None) -> None:
        """Commit to one group and read back; check at the query's end that it has read the group's topics."""
        query = run.query
        run.refuse_second(target, wanted.offsets, self._followed().values())
        attempt = Attempt(run, target, self._client(run, wanted.settings), wanted.offsets, batch)
        compares = not self._allow_new_cluster
        check = partial(self._check_commits, attempt, identify_topics(attempt, compares=compares))
        try:
            commit_forward(attempt.client, target.group_id, wanted.offsets, query=query.name, check=check)
        except CommitError as error:
            if error.written:
                self.outcomes.record_commit(query, target, wholly=False)
            raise
        log.debug("Committed and read back: group %r, query %s, batch %s", target.group_id, query.name, batch)
        run.committed_at = time.monotonic()
        self.outcomes.record_commit(query, target)
        if run.ended_at is not None and compares:
            check_topics_at_end(attempt)

    def _client(self, run: Run, settings: Settings) -> CommitPort:
        if settings not in self._clients:
            self._clients[settings] = self._new_client(dict(settings))
        run.clients.add(settings)
        return self._clients[settings]

    def _check_commits(self, attempt: Attempt, log_ids: LogIds, found: Commits) -> Mapping[str, str]:
        """Refuse an attempt that must not overwrite the group's commits; return its metadata by topic."""
        run, target, _, offsets, batch = attempt
        query_id = run.query.query_id
        follows = "" if self._allow_new_query else query_id
        known = UNKNOWN_LOGS if self._allow_new_cluster else log_ids
        check_group_follows(target.group_id, found, follows, known)
        move = newest_move(found, query_id)
        elsewhere = move in moves_after_batch(found, query_id, batch, offsets, run.began)
        # The group alone is elsewhere after a restore of both, or a later move of the checkpoint alone.
        elsewhere = elsewhere and not run.is_at_checkpoint(batch, offsets)
        run.refuse_overtaken(target, move, elsewhere=elsewhere)
        run.claims.setdefault(target, set()).update(offsets)
        # With the move, this commit does not hide the move from the late commit of an earlier run.
        metadata = driver_metadata(LISTENER, query=query_id, batch=batch)
        return replace(metadata, move=move or None).texts(offsets, log_ids)

    def _ask_retention(self) -> None:
        """Ask the brokers of idle queries, once, how long they keep offsets: this takes a while."""
        for run in self._followed().values():
            if not run.idle or run.retention is not None or not run.committed_at:
                continue
            minutes = [
                answer_or_none(self._clients[settings].offsets_retention_minutes) for settings in run.clients
            ]
            run.retention = min((60.0 * each for each in minutes if each is not None), default=math.inf)

    def _forget_done(self) -> None:
        """Forget each ended run whose last commit is done, or was tried for long enough."""
        with self._noting:
            now, unfinished = time.monotonic(), set[str]()
            for run_id, run in list(self._runs.items()):
                # During a flush, its timeout decides how long to retry.
                done = run.ended_at is not None and (
                    not run.wanted or max(run.ended_at + GIVE_UP, self._flush_until) < now
                )
                # A late commit of an earlier run must find this one.
                if done and run.query.query_id not in unfinished:
                    self._runs.pop(run_id).query.forget()
                else:
                    unfinished.add(run.query.query_id)

    def _close_unused_clients(self) -> None:
        used = {settings for run in self._followed().values() for settings in run.clients}
        for settings in self._clients.keys() - used:
            answer_or_none(self._clients.pop(settings).close)
