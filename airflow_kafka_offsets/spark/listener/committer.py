"""What is committed for the queries of a session, when, and what is refused?"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    CommitError,
    KafkaOffsetsError,
    PlanRefusedError,
    SetupError,
)
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.spark.commit import driver_metadata
from airflow_kafka_offsets.spark.group_commit import (
    GroupClient,
    commit_forward,
    refuse_other_query,
)
from airflow_kafka_offsets.spark.listener.outcomes import Outcomes
from airflow_kafka_offsets.spark.listener.queries import RunningQuery
from airflow_kafka_offsets.spark.listener.targets import Settings, Target, TargetOffsets, group_targets

log = logging.getLogger(__name__)

REFRESH = 3_600.0
"""Seconds until a query without new data commits again, at most: Kafka forgets groups of which it hears nothing."""

REFRESHES = 4
"""Commits within the time after which the broker would forget the group."""

GIVE_UP = 60.0
"""Seconds after its end for which a query's last commit is tried again."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_FLUSH_PAUSE = 0.5


@dataclass
class _Run:
    query: RunningQuery
    batch: int | None = None
    wanted: bool = False
    busy: bool = False
    due: float = 0.0
    attempts: int = 0
    ended: float | None = None
    committed: float | None = None
    idle: bool = False
    kept: float | None = None
    """Seconds for which the brokers remember its groups; ``None`` if they were not asked, infinite if they do not tell."""
    claims: dict[Target, set[TopicPartition]] = field(default_factory=dict)
    clients: set[Settings] = field(default_factory=set)

    @property
    def refresh(self) -> float:
        """Seconds after a commit until the next one is due although nothing is new."""
        return REFRESH if self.kept is None else min(REFRESH, self.kept / REFRESHES)


class Committer:
    """
    Follows queries, and commits what they have finished.

    What it is told (:meth:`follow`, :meth:`finished`, :meth:`idle`, :meth:`ended`) is only noted; the commits are made
    by :meth:`step`, on whichever thread calls it. Of a query only the newest state is committed. What became of the
    commits is in ``outcomes``.

    :param new_client: makes a client from the ``kafka.*`` settings of a source.
    :param group_id: the group, or ``{topic: group}``, of sources that name none in their options.
    :param allow_new_query: whether a query may take over a group that another query followed.
    """

    def __init__(
        self,
        new_client: Callable[[Mapping[str, str]], GroupClient],
        *,
        group_id: GroupIds | None = None,
        allow_new_query: bool = False,
    ) -> None:
        self._new_client = new_client
        self._group_id = group_id
        self._allow_new_query = allow_new_query
        self._runs: dict[str, _Run] = {}
        self._clients: dict[Settings, GroupClient] = {}
        self._flush_until = 0.0
        self.outcomes = Outcomes()
        self._noting = threading.Lock()
        self._committing = threading.Lock()

    def followed(self, run_id: str) -> RunningQuery | None:
        """Return the query of which this is a run, if it is followed."""
        with self._noting:
            run = self._runs.get(run_id)
        return None if run is None else run.query

    def queries(self) -> list[RunningQuery]:
        """Return all that are followed."""
        with self._noting:
            return [run.query for run in self._runs.values()]

    def follow(self, run_id: str, query: RunningQuery) -> None:
        """Follow a query from now on."""
        with self._noting:
            self._runs.setdefault(run_id, _Run(query))

    def finished(self, run_id: str, batch: int | None) -> None:
        """Note that a query has finished a batch."""
        self._want(run_id, batch)

    def idle(self, run_id: str) -> None:
        """Note that a query has nothing to do; what it had finished before is committed, again after a while."""
        with self._noting:
            run = self._runs.get(run_id)
            quiet = run is not None and (
                run.committed is None or run.committed + run.refresh < time.monotonic()
            )
            if run is not None:
                run.idle = True
        if quiet:
            self._want(run_id, None)

    def ended(self, run_id: str) -> None:
        """Note that a query has ended; what it had finished is committed once more, then it is forgotten."""
        self._want(run_id, None, ended=time.monotonic())

    def step(self) -> float | None:
        """
        Commit what is due.

        :return: seconds until more is due; ``None`` when no query is followed any more.
        """
        with self._committing:
            return self._step()

    def flush(self, timeout: float) -> None:
        """
        Commit everything that is finished by now, with as many attempts as there is time for.

        :param timeout: seconds; an attempt that is under way is not broken off.
        """
        deadline = self._flush_until = time.monotonic() + timeout
        self._notice_ends()
        # One pass in any case: it begins when the commit that is under way on another thread has ended.
        while self._committing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                if self._wanted():
                    self._step(at_once=True)
            finally:
                self._committing.release()
            left = deadline - time.monotonic()
            if left <= 0 or not self._wanted():
                break
            time.sleep(min(_FLUSH_PAUSE, left))
        self.late(timeout)

    def late(self, timeout: float) -> None:
        """Note the queries of which a commit is not done after so many seconds."""
        with self._noting:
            late = [run.query for run in self._runs.values() if run.wanted or run.busy]
        for query in late:
            self.outcomes.late(query, timeout)

    def close(self, timeout: float = GIVE_UP) -> None:
        """
        Forget all queries and close all clients.

        :param timeout: seconds to wait for a commit that is under way; then the clients are closed after it.
        """
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
            if run.ended is None and not _is_active(run.query):
                self.ended(run_id)

    def _want(self, run_id: str, batch: int | None, ended: float | None = None) -> None:
        with self._noting:
            run = self._runs.get(run_id)
            if run is not None:
                run.wanted, run.batch = True, batch
                run.ended = run.ended or ended

    def _wanted(self) -> list[_Run]:
        with self._noting:
            return [run for run in self._runs.values() if run.wanted]

    def _step(self, *, at_once: bool = False) -> float | None:
        now = time.monotonic()
        wanted = self._wanted()
        if not wanted:
            # Spark drops events when it has too many, also that of a query's end.
            self._notice_ends()
        for run in wanted or self._wanted():
            if at_once or run.due <= now:
                self._commit(run)
        if not at_once:
            self._ask_how_long_groups_are_kept()
        with self._noting:
            for run_id, run in list(self._runs.items()):
                if run.ended is not None and (not run.wanted or self._given_up(run.ended)):
                    self._runs.pop(run_id).query.forget()
            pauses = [
                run.due - time.monotonic() if run.wanted else run.refresh for run in self._runs.values()
            ]
        self._close_unused_clients()
        return max(0.0, min(pauses)) if pauses else None

    def _ask_how_long_groups_are_kept(self) -> None:
        """Ask the brokers of idle queries, once: it may take a while, and is of no use to the others."""
        with self._noting:
            runs = [run for run in self._runs.values() if run.idle and run.kept is None and run.committed]
        for run in runs:
            run.kept = min(map(self._kept, run.clients), default=math.inf)

    def _kept(self, settings: Settings) -> float:
        try:
            minutes = self._clients[settings].offsets_retention_minutes()
        except Exception as error:  # noqa: BLE001  # whatever py4j, or a Spark that is going down, throws
            log.debug("The broker does not tell how long it keeps offsets: %s", error)
            minutes = None
        return math.inf if minutes is None else 60.0 * minutes

    def _given_up(self, ended: float) -> bool:
        # Who waits for it says how long.
        return max(ended + GIVE_UP, self._flush_until) < time.monotonic()

    def _commit(self, run: _Run) -> None:
        with self._noting:
            run.wanted, run.busy, batch = False, True, run.batch
        try:
            retry = self._commit_all(run, batch)
        finally:
            run.busy = False
        run.attempts = run.attempts + 1 if retry else 0
        run.due = 0.0
        if retry:
            run.due = time.monotonic() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (run.attempts - 1))
            with self._noting:
                run.wanted = True

    def _commit_all(self, run: _Run, batch: int | None) -> bool:
        """Commit to each of a query's groups; return whether another try may do what failed."""
        try:
            targets, without_group = group_targets(run.query.sources(), self._group_id)
            if targets and batch is None:
                batch = run.query.newest_batch()
        except KafkaOffsetsError as error:
            self.outcomes.not_committed(run.query, error)
            return False
        except Exception as error:  # noqa: BLE001  # whatever py4j, or a Spark that is going down, throws
            if batch is None:
                log.debug("Query %s does not tell what it has finished: %s", run.query.name, error)
            else:
                unknown = SetupError(
                    f"Spark does not tell what it has finished, so nothing is committed: {error}"
                )
                self.outcomes.not_committed(run.query, unknown)
            return False
        for text in without_group:
            self.outcomes.say(run.query, "", text, text)
        retry = False
        silent: dict[str, BrokerUnavailableError] = {}
        for target, wanted in targets.items():
            # A broker that did not answer for one group would not for the next one, and each takes its time.
            reason = silent.get(target.cluster) or self._reason_against(run, target, wanted, batch)
            if reason is None:
                run.committed = time.monotonic()
                self.outcomes.committed(run.query, target.group_id)
                continue
            if isinstance(reason, BrokerUnavailableError):
                silent[target.cluster] = reason
            retry = retry or reason.retriable
            self.outcomes.not_committed(run.query, reason, target.group_id)
        return retry

    def _reason_against(
        self, run: _Run, target: Target, wanted: TargetOffsets, batch: int | None
    ) -> KafkaOffsetsError | None:
        try:
            self._write(run, target, wanted, batch)
        except KafkaOffsetsError as error:
            return error
        return None

    def _write(self, run: _Run, target: Target, wanted: TargetOffsets, batch: int | None) -> None:
        group_id, query, offsets = target.group_id, run.query, wanted.offsets
        self._refuse_second(run, target, offsets)
        client = self._client(run, wanted.settings)
        commits = client.committed(group_id, offsets)
        if not self._allow_new_query:
            refuse_other_query(group_id, commits, query.query_id)
        run.claims.setdefault(target, set()).update(offsets)
        metadata = driver_metadata("spark listener", query=query.query_id, batch=batch)
        try:
            commit_forward(client, group_id, offsets, commits, metadata, query.name)
        except CommitError as error:
            if error.written:
                self.outcomes.committed(query, group_id, wholly=False)
            raise
        log.debug("Committed and read back: group %s, query %s, batch %s", group_id, query.name, batch)

    def _refuse_second(self, run: _Run, target: Target, offsets: Offsets) -> None:
        with self._noting:
            others = [other for other in self._runs.values() if other.query.query_id != run.query.query_id]
        for other in others:
            shared = other.claims.get(target, set()) & offsets.keys()
            if shared:
                raise PlanRefusedError(
                    [
                        f"query {run.query.name} names group {target.group_id!r} for {summarize(shared)}, which query "
                        f"{other.query.name} follows already: give each query a group of its own"
                    ]
                )

    def _client(self, run: _Run, settings: Settings) -> GroupClient:
        if settings not in self._clients:
            self._clients[settings] = self._new_client(dict(settings))
        run.clients.add(settings)
        return self._clients[settings]

    def _close_unused_clients(self) -> None:
        with self._noting:
            used = {settings for run in self._runs.values() for settings in run.clients}
        for settings in self._clients.keys() - used:
            _close(self._clients.pop(settings))


def _close(client: GroupClient) -> None:
    try:
        client.close()
    except Exception as error:  # noqa: BLE001  # the JVM may be gone
        log.debug("A client was not closed: %s", error)


def _is_active(query: RunningQuery) -> bool:
    try:
        return query.is_active()
    except Exception as error:  # noqa: BLE001  # the JVM or the server may be gone
        log.debug("Query %s does not tell whether it runs: %s", query.name, error)
        return False
