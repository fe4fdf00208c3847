"""
Makes consumer groups follow Structured Streaming queries while they run.

One line attaches it::

    with committing(spark):
        query = orders.writeStream.format("kafka").option("checkpointLocation", ...).start()
        query.awaitTermination()

Each Kafka source names its group in the option ``kafka.consumer.commit.groupid``, or
``consumer.commit.groupid``.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from socket import socket
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient
from airflow_kafka_offsets.spark.kafka_options import quiet_py4j
from airflow_kafka_offsets.spark.listener.attaching import BriefEvents, attach, deliver_events, detach
from airflow_kafka_offsets.spark.listener.committer import Committer
from airflow_kafka_offsets.spark.listener.queries import (
    ClassicQuery,
    ConnectQuery,
    RunningQuery,
    callback_socket,
)
from airflow_kafka_offsets.spark.listener.refusals import (
    check_connect,
    refuse_delegation_tokens,
    token_targets,
    topic_groups,
)
from airflow_kafka_offsets.spark.listener.runs import Counts
from airflow_kafka_offsets.spark.listener.threads import (
    BackgroundThread,
    LimitedCalls,
    NoThreadError,
    call_on_daemon,
)

log = logging.getLogger(__name__)

FLUSH = 60.0
"""Seconds for the last commits at the end."""

REQUEST = 10.0
"""Seconds for one request to a broker or to a Spark Connect server."""

_GRACE = 1.0
"""Seconds by which the end may be late."""

_LONGEST = 604_800.0
"""Maximum seconds of a timeout: a lock accepts neither infinity nor NaN."""

_NOTHING = (
    "nothing was committed, because this session has reported no finished batch of a query with a Kafka "
    "source; a query of another session, such as spark.newSession(), needs its own listener"
)

_UNKNOWN_END = (
    "the Spark Connect server does not answer, so its newest finished offsets are unknown: the offsets of "
    "its last event are committed; its next run, or CommitOffsetsOperator, commits the rest"
)


class KafkaOffsetCommitterListener(StreamingQueryListener):  # type: ignore[misc]  # PySpark is not typed here
    """
    Commits the finished offsets of a session's queries to the consumer groups that their Kafka sources name.

    A source names its group in its option ``kafka.consumer.commit.groupid``, or ``consumer.commit.groupid``.
    The listener commits the ends of the newest batch that Spark has marked as committed in the checkpoint. It
    commits after each batch, but at most once a second, and at the end of the query. Without new data it
    commits once an hour, or more often if Kafka would forget the group sooner. A separate thread makes the
    commits with the Kafka client in the driver's JVM and the source's own ``kafka.*`` options, and reads each
    commit back. It never moves a group backwards, and never takes a group over from another query. An error
    never ends a query: it is logged and counted, the commit is retried, and the next batch commits again.

    Attach it with :func:`committing`, which also stops it, or with ``spark.streams.addListener``; then call
    :meth:`stop` when the queries have ended. Otherwise Python stops it when it ends.

    :param spark: the session whose queries are followed.
    :param group_id: the group, or ``{topic: group}``, of sources whose options name none. Required with Spark
        Connect, which does not show the options.
    :param config: further settings of the Kafka client, which override the source's settings. With Spark
        Connect these are all settings: librdkafka's, with ``bootstrap.servers``.
    :param allow_new_query: whether a query may take over a group that has followed another query, for example
        after a start with a new checkpoint.
    :param allow_new_cluster: whether to commit to a group whose last commit was made on another cluster, or
        in a topic that was created again since.
    :raises UsageError: with Spark Connect, if ``group_id`` or ``config`` is missing.
    :raises SetupError: with Spark Connect before 4.0, which runs listeners on the server.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        group_id: GroupIds | None = None,
        config: Mapping[str, Any] | None = None,
        allow_new_query: bool = False,
        allow_new_cluster: bool = False,
    ) -> None:
        groups = None if group_id is None else topic_groups(group_id)
        self._session = spark
        self._config = dict(config or {})
        self._jvm: Any = getattr(spark, "_jvm", None)
        if self._jvm is None:
            check_connect(groups, self._config)
        else:
            # The listener reads the sources' options from the JVM.
            quiet_py4j()
            self._tokens = token_targets(dict(spark.sparkContext.getConf().getAll()))
        allowed = {"allow_new_query": allow_new_query, "allow_new_cluster": allow_new_cluster}
        self._committer = Committer(self._new_client, group_id=groups, **allowed)
        self._worker = BackgroundThread(self._committer.commit_due, "kafka-offset-committer")
        self._server = LimitedCalls("kafka-offset-committer-asks", REQUEST)
        self._ended = self._has_followed = False
        self._at_exit: Callable[[], None] | None = _stop_at_exit(self)
        with _only_logged():
            # Spark sends no event of their start, and none of a batch unless there is new data.
            for query in spark.streams.active:
                self.onQueryIdle(query)

    @property
    def counts(self) -> Counts:
        """Numbers of successful and refused commits, and of failed attempts."""
        return self._committer.outcomes.counts

    @property
    def errors(self) -> list[KafkaOffsetsError]:
        """
        The errors of groups that are not at their queries' offsets, and of topics for which neither a source
        nor ``group_id`` names a group. A later commit removes an error.
        """
        return self._committer.outcomes.errors

    @cached_property
    def _jlistener(self) -> Any:
        """The Java listener, which PySpark attaches and removes."""
        return self._jvm.PythonStreamingQueryListenerWrapper(BriefEvents(self))

    def flush(self, timeout: float = FLUSH) -> None:
        """
        Wait until all finished offsets are committed or refused.

        :param timeout: approximate seconds: an attempt in progress is not interrupted.
        """
        timeout = min(_LONGEST, timeout)
        deadline = Deadline(timeout)
        unknown: list[RunningQuery] = []
        # Half of the time is left to commit the known offsets if Spark does not answer.
        if self._jvm is not None:
            deliver_events(self._session, timeout / 2)
        else:
            self._server.seconds = min(REQUEST, timeout / 2)
            queries = self._committer.queries().values()
            unknown = [query for query in queries if not self._ask_for_last_progress(query)]
        self._committer.flush(deadline.seconds_left)
        for query in unknown:
            self._committer.outcomes.record_incomplete(query, _UNKNOWN_END)

    def stop(self, timeout: float = FLUSH) -> None:
        """
        Commit the remaining offsets and stop the listener in time, even if a broker or Spark does not answer.

        A second call does nothing. No thread and no client remains, unless there is no answer: then a warning
        is logged, and a daemon thread continues, for which Python does not wait.

        :param timeout: seconds; the call may take one second more.
        """
        if self._at_exit is None:
            return
        atexit.unregister(self._at_exit)
        self._at_exit = None
        timeout = min(_LONGEST, timeout)
        deadline = Deadline(timeout)
        try:
            end = call_on_daemon(lambda: self._end(deadline), "kafka-offset-committer-ends")
            end.result(timeout + _GRACE)
        except NoThreadError:
            self._end(deadline)
        except TimeoutError:
            self._committer.record_late(timeout)
            log.warning("Kafka offsets: the end took longer than %g s; a daemon thread continues it", timeout)

    def _end(self, deadline: Deadline) -> None:
        with _only_logged():
            self.flush(deadline.seconds_left)
        if not self.errors and self.counts == Counts():
            log.warning("Kafka offsets: %s", _NOTHING)
        self._ended = True
        # An attempt in progress knows why there was no answer.
        self._worker.stop(min(REQUEST, deadline.seconds_left + _GRACE / 2))
        self._committer.close(deadline.seconds_left)
        # Last, because it may take all the remaining time; an unreachable server gets no time.
        with _only_logged():
            if not detach(self._session, self, 0.0 if self._server.stuck else deadline.seconds_left):
                log.warning(
                    "Kafka offsets: the Spark Connect server does not answer, so the listener is still "
                    "attached to the session; it does nothing more, and PySpark continues to try to "
                    "remove it"
                )

    def raise_errors(self) -> None:
        """
        Raise the error of a group that is not at its query's offsets, or of a topic without a group.

        :raises KafkaOffsetsError: the only error, or an error that names all.
        :raises UsageError: if the listener was stopped, and has followed no query.
        """
        self._committer.outcomes.raise_errors()
        if self._at_exit is None and not self._has_followed:
            raise UsageError(_NOTHING)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Record a query; Spark calls it."""
        with _only_logged():
            # Spark calls this method on the query's own thread, unlike the others.
            self._followed(event, None if self._jvm is None else callback_socket(self._jvm))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Record a finished batch; Spark calls it."""
        with _only_logged():
            progress = event.progress
            query = self._followed(progress)
            if isinstance(query, ConnectQuery):
                query.add_progress(progress)
            self._committer.record_finished(str(progress.runId), int(progress.batchId))
            self._worker.wake()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Record that a query waits for data; Spark calls it."""
        with _only_logged():
            if self._followed(event) is not None:
                self._committer.record_idle(str(event.runId))
                self._worker.wake()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Record a query's end; Spark calls it."""
        with _only_logged():
            self._committer.record_ended(str(event.runId))
            self._worker.wake()

    def _followed(self, event: Any, called_on: socket | None = None) -> RunningQuery | None:
        if self._ended:
            return None
        run_id = str(event.runId)
        known = self._committer.queries().get(run_id)
        if known is not None:
            return known
        query_id = str(event.id)
        # After its end the session no longer returns the query, but may return its next run.
        found = self._session.streams.get(query_id)
        if found is not None and str(found.runId) != run_id:
            found = None
        if self._jvm is None:
            known = ConnectQuery(query_id, getattr(event, "name", None), found, self._server)
        elif found is not None:
            known = ClassicQuery(found, called_on)
        if known is not None:
            self._committer.follow(run_id, known)
            self._has_followed = True
        return known

    def _new_client(self, settings: Mapping[str, str]) -> CommitPort:
        if self._jvm is not None:
            merged = {**settings, **{key: str(value) for key, value in self._config.items()}}
            refuse_delegation_tokens(self._jvm, self._tokens, merged)
            return JvmOffsetsClient(self._jvm, merged, REQUEST)
        from airflow_kafka_offsets.kafka.client import OffsetsClient

        return OffsetsClient(self._config, timeout=REQUEST)

    def _ask_for_last_progress(self, query: RunningQuery) -> bool:
        """Ask for the last progress, because events may be lost; return whether there was an answer."""
        try:
            if isinstance(query, ConnectQuery):
                query.ask_last_progress()
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001  # the session may be stopped, or not know the query
            log.debug("Query %s does not report its last progress: %s", query.name, error)
        return True


@contextmanager
def committing(
    spark: SparkSession,
    *,
    group_id: GroupIds | None = None,
    config: Mapping[str, Any] | None = None,
    allow_new_query: bool = False,
    allow_new_cluster: bool = False,
    raise_errors: bool = False,
    timeout: float = FLUSH,
) -> Iterator[KafkaOffsetCommitterListener]:
    """
    Make consumer groups follow the queries that run inside the ``with`` block.

    At its end all finished offsets are committed. A query that continues after the block is not followed. The
    parameters before ``raise_errors`` are those of :class:`KafkaOffsetCommitterListener`.

    :param raise_errors: raise at the end if a group is not at its query's offsets, a topic has no group, or
        no query was followed. An exception of the block has precedence.
    :param timeout: seconds for the commits at the end, even if brokers or Spark do not answer; the end may
        take one second more.
    :raises KafkaOffsetsError: with ``raise_errors``.
    """
    allowed = {"allow_new_query": allow_new_query, "allow_new_cluster": allow_new_cluster}
    listener = KafkaOffsetCommitterListener(spark, group_id=group_id, config=config, **allowed)
    try:
        attach(spark, listener)
        yield listener
    finally:
        listener.stop(timeout)
    if raise_errors:
        listener.raise_errors()


@contextmanager
def _only_logged() -> Iterator[None]:
    """Log an unexpected error and keep it from the job; Spark Connect would also remove all listeners."""
    try:
        yield
    except Exception:
        log.exception("Kafka offsets: an unexpected error")


def _stop_at_exit(listener: KafkaOffsetCommitterListener) -> Callable[[], None]:
    reference = weakref.ref(listener)

    def stop() -> None:
        if (found := reference()) is not None:
            found.stop()

    return atexit.register(stop)
