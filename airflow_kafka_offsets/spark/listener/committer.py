"""Commits the finished offsets of a session's queries, before Kafka forgets their groups."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    CommitError,
    DriftError,
    KafkaOffsetsError,
    PlanRefusedError,
    SetupError,
)
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import (
    LISTENER,
    check_group_follows,
    moves_elsewhere,
    newest_move,
)
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Commits, Offsets, summarize
from airflow_kafka_offsets.moves.write import commit_forward
from airflow_kafka_offsets.readings.log_checks import known_log_ids, recreated_since, unconfirmed
from airflow_kafka_offsets.spark.commit import driver_metadata
from airflow_kafka_offsets.spark.listener.queries import RunningQuery, Settings, Target, group_targets
from airflow_kafka_offsets.spark.listener.runs import Outcomes, Run, answer_of

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
        with self._noting:
            return {run_id: run.query for run_id, run in self._runs.items()}

    def follow(self, run_id: str, query: RunningQuery) -> None:
        """Follow a query from now on."""
        run = Run(query, checkpoint_move=answer_of(query.newest_move))
        with self._noting:
            self._runs.setdefault(run_id, run)

    def record_finished(self, run_id: str, batch: int | None, ended: float | None = None) -> None:
        """Record that a query has finished a batch, and when it has ended: its offsets are committed."""
        with self._noting:
            run = self._runs.get(run_id)
            if run is not None:
                # A batch that is not committed yet came after any move of the checkpoint.
                run.batch = run.batch if run.wanted and batch is None else batch
                run.wanted = True
                run.first = batch if run.first is None else run.first
                run.ended = run.ended or ended
                if ended and not run.attempts:
                    run.due = 0.0

    def record_idle(self, run_id: str) -> None:
        """Record that a query waits for data: commit new finished offsets, and the same after some time."""
        with self._noting:
            run = self._runs.get(run_id)
            if run is None:
                return
            run.idle = True
            due = run.committed is None or run.committed + run.refresh < time.monotonic()
        # Under load Spark drops events, also the event of a batch.
        if due or answer_of(run.query.sources) != run.sources:
            self.record_finished(run_id, None)

    def record_ended(self, run_id: str) -> None:
        """Record that a query has ended; commit its offsets a last time, then forget it."""
        self.record_finished(run_id, None, ended=time.monotonic())

    def commit_due(self) -> float | None:
        """Commit all due queries; return the seconds until the next is due, ``None`` without a query."""
        with self._committing:
            return self._step()

    def flush(self, timeout: float) -> None:
        """Commit all batches that have finished by now, with repeated attempts until ``timeout``."""
        deadline = self._flush_until = time.monotonic() + timeout
        self._notice_ends()
        with self._noting:
            running = [run_id for run_id, run in self._runs.items() if run.ended is None]
        for run_id in running:
            # Under load Spark drops events, also the event of a batch.
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
        with self._noting:
            late = [run.query for run in self._runs.values() if run.wanted or run.busy]
        text = f"its last commit was not done within {timeout:.3g} s; its next run does it"
        for query in late:
            self.outcomes.record_incomplete(query, text)

    def close(self, timeout: float = GIVE_UP) -> None:
        """Forget all queries and close all clients; after ``timeout``, a running commit closes them."""
        with self._noting:
            runs = list(self._runs.values())
            self._runs.clear()
        for run in runs:
            if run.ended is not None:
                run.query.forget()
        if self._committing.acquire(timeout=timeout):
            try:
                self._close_unused_clients()
            finally:
                self._committing.release()

    def _notice_ends(self) -> None:
        with self._noting:
            runs = dict(self._runs)
        for run_id, run in runs.items():
            if run.ended is None and not answer_of(run.query.is_active):
                self.record_ended(run_id)

    def _wanted(self) -> list[Run]:
        with self._noting:
            return [run for run in self._runs.values() if run.wanted]

    def _step(self, *, at_once: bool = False) -> float | None:
        now = time.monotonic()
        wanted = self._wanted()
        if not wanted or self._notice <= now:
            # Under load Spark drops events, also the event of a query's end.
            self._notice = now + QUIET_PERIOD
            self._notice_ends()
        for run in wanted or self._wanted():
            if at_once or run.due <= now:
                self._commit(run)
        if not at_once:
            self._ask_retention()
        with self._noting:
            now, unfinished = time.monotonic(), set[str]()
            for run_id, run in list(self._runs.items()):
                # During a flush, its timeout decides how long to retry.
                done = run.ended is not None and (
                    not run.wanted or max(run.ended + GIVE_UP, self._flush_until) < now
                )
                # A late commit of an earlier run must find this one.
                if done and run.query.query_id not in unfinished:
                    self._runs.pop(run_id).query.forget()
                else:
                    unfinished.add(run.query.query_id)
            pauses = [run.due - now if run.wanted else run.refresh for run in self._runs.values()]
        self._close_unused_clients()
        return max(0.0, min(pauses)) if pauses else None

    def _ask_retention(self) -> None:
        """Ask the brokers of idle queries, once, how long they keep offsets: this takes a while."""
        with self._noting:
            runs = list(self._runs.values())
        for run in (each for each in runs if each.idle and each.retention is None and each.committed):
            minutes = [
                answer_of(self._clients[settings].offsets_retention_minutes) for settings in run.clients
            ]
            run.retention = min((60.0 * each for each in minutes if each is not None), default=math.inf)

    def _commit(self, run: Run) -> None:
        with self._noting:
            run.wanted, run.busy, batch = False, True, run.batch
        try:
            retry = self._commit_all(run, batch)
        finally:
            run.busy = False
        run.attempts = run.attempts + 1 if retry else 0
        run.due = 0.0 if run.committed is None else run.committed + PAUSE
        if retry:
            run.due = time.monotonic() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (run.attempts - 1))
            with self._noting:
                run.wanted = True

    def _commit_all(self, run: Run, batch: int | None) -> bool:
        """Commit to each group of a query; return whether another attempt may fix a failure."""
        try:
            run.sources = run.query.sources()
            targets, without_group = group_targets(run.sources, self._group_id)
            if targets and batch is None:
                batch = run.query.newest_batch()
        except KafkaOffsetsError as refusal:
            self.outcomes.record_error(run.query, refusal)
            return False
        except Exception as failure:  # noqa: BLE001  # py4j, or a Spark that shuts down, may raise anything
            if run.first is None:
                log.debug("Query %s does not report its finished offsets: %s", run.query.name, failure)
            else:
                text = f"Spark does not report the finished offsets, so nothing is committed: {failure}"
                self.outcomes.record_error(run.query, SetupError(text))
            return False
        for text in without_group:
            self.outcomes.record_without_group(run.query, text)
        retry = False
        silent: dict[str, BrokerUnavailableError] = {}
        for target, wanted in targets.items():
            if self._is_superseded(run, target):
                continue
            try:
                # A cluster that did not answer for one group would not answer for the next either.
                if target.cluster in silent:
                    raise silent[target.cluster]
                self._write(run, target, wanted.settings, wanted.offsets, batch)
                run.committed = time.monotonic()
                self.outcomes.record_commit(run.query, target)
                self._check_topics_at_end(run, target, self._clients[wanted.settings])
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

    def _write(
        self, run: Run, target: Target, settings: Settings, offsets: Offsets, batch: int | None
    ) -> None:
        group_id, query = target.group_id, run.query
        self._refuse_second(run, target, offsets)
        if settings not in self._clients:
            self._clients[settings] = self._new_client(dict(settings))
        client = self._clients[settings]
        run.clients.add(settings)
        topics = {tp.topic for tp in offsets}
        identified, log_ids = run.log_ids.get(target, (None, UNKNOWN_LOGS))
        if topics != identified:
            now, before = known_log_ids(client, topics), UNKNOWN_LOGS
            first = batch if run.first is None else run.first
            if identified is None and first is not None and not self._allow_new_cluster:
                before = _logs_before(query, first, client, group_id, offsets, now)
            # A topic keeps its id while it is read: the query does not notice that it was created again.
            log_ids = now | before | log_ids.restricted_to(topics)
            run.log_ids[target] = topics, log_ids
        metadata = driver_metadata(LISTENER, query=query.query_id, batch=batch)

        def check(found: Commits) -> Mapping[str, str]:
            follows = "" if self._allow_new_query else query.query_id
            check_group_follows(
                group_id, found, follows, UNKNOWN_LOGS if self._allow_new_cluster else log_ids
            )
            move = newest_move(found, query.query_id)
            elsewhere = move in moves_elsewhere(found, query.query_id, batch, offsets)
            run.refuse_overtaken(target, move, elsewhere=elsewhere)
            run.claims.setdefault(target, set()).update(offsets)
            # So this commit does not hide the move from the late commit of an earlier run.
            return replace(metadata, move=move or None).texts(offsets, log_ids)

        try:
            commit_forward(client, group_id, offsets, query=query.name, check=check)
        except CommitError as error:
            if error.written:
                self.outcomes.record_commit(query, target, wholly=False)
            raise
        log.debug("Committed and read back: group %r, query %s, batch %s", group_id, query.name, batch)

    def _check_topics_at_end(self, run: Run, target: Target, client: CommitPort) -> None:
        """Raise an error if an ended query has read on in a topic that was created again while it ran."""
        if run.ended is None or self._allow_new_cluster:
            return
        # Spark does not notice it if the new log is long enough, and Kafka deletes commits with their topic.
        topics, log_ids = run.log_ids[target]
        what = f"what query {run.query.name} has read"
        DriftError.raise_if(other_logs_refusals(what, log_ids, known_log_ids(client, topics)))

    def _refuse_second(self, run: Run, target: Target, offsets: Offsets) -> None:
        with self._noting:
            others = [other for other in self._runs.values() if other.query.query_id != run.query.query_id]
        for other in others:
            if shared := other.claims.get(target, set()) & offsets.keys():
                raise PlanRefusedError(
                    f"query {run.query.name} names group {target.group_id!r} for {summarize(shared)}, which "
                    f"query {other.query.name} follows already: give each query a separate group"
                )

    def _is_superseded(self, run: Run, target: Target) -> bool:
        """Whether a later run of the query has committed: it continues from there, or from a reset."""
        with self._noting:
            runs = list(self._runs.values())
        later = runs[runs.index(run) + 1 :] if run in runs else []
        return any(each.query.query_id == run.query.query_id and target in each.claims for each in later)

    def _close_unused_clients(self) -> None:
        with self._noting:
            used = {settings for run in self._runs.values() for settings in run.clients}
        for settings in self._clients.keys() - used:
            answer_of(self._clients.pop(settings).close)


def _logs_before(
    query: RunningQuery, first: int, client: CommitPort, group_id: str, offsets: Offsets, now: LogIds
) -> LogIds:
    """
    Return the ids of topics that no commit confirms, as the checkpoint's newest move has recorded them.

    The id of a topic that was created again since a batch before the first one of a run is unknown.
    """
    silent = unconfirmed(offsets, client.committed(group_id, offsets))
    if (since := answer_of(partial(query.since_move, first))) is None:
        return UNKNOWN_LOGS
    logs, batches = since
    moved = {} if logs.is_other_cluster(now) else logs.restricted_to({tp.topic for tp in silent}).topics
    unmoved = {tp: offset for tp, offset in silent.items() if tp.topic not in moved}
    known = iter(partial(answer_of, partial(next, batches, None)), None)
    again = recreated_since(client, filter(None, known), offsets, unmoved)
    return LogIds("", {**moved, **{tp.topic: "unknown" for tp in again}})
