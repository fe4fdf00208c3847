"""Attaches a listener to a session and removes it, without PySpark's endless waits and long events."""

from __future__ import annotations

import logging
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener

from airflow_kafka_offsets.spark.listener.threads import call_on_daemon

log = logging.getLogger(__name__)

_BUS_ATTRIBUTES = {"_sqm", "_listener_bus", "_execution_thread", "_lock"}


class BriefEvents(JStreamingQueryListener):  # type: ignore[misc]  # PySpark is not typed here
    """
    The object that Java calls for a listener; it reads only the query and the batch of a batch's event.

    PySpark's own class reads the whole event, with some hundred calls into the JVM.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802  # Spark's name
        """Pass the event to the listener; Spark calls this method."""
        self.pylistener.onQueryProgress(SimpleNamespace(progress=_Progress(jevent.progress())))


class _Progress:
    """An event with PySpark's attribute names."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self.runId = progress.runId().toString()
        self.batchId = progress.batchId()

    @property
    def id(self) -> str:
        """The query's id, only read for a query that is not known yet."""
        return str(self._progress.id().toString())


def attach(session: SparkSession, listener: Any) -> None:
    """
    Attach a listener.

    With Spark Connect this starts PySpark's event thread, which does not end while the server is unreachable.
    Started from a daemon thread, the event thread is a daemon too, so Python does not wait for it at its end.
    """
    if _in_jvm(session):
        session.streams.addListener(listener)
    else:
        add = partial(session.streams.addListener, listener)
        call_on_daemon(add, "kafka-offset-committer-attaches").result()


def deliver_events(session: SparkSession, timeout: float) -> None:
    """Wait until Spark has delivered all past events to the listeners of a classic session."""
    try:
        bus = session.sparkContext._jsc.sc().listenerBus()  # PySpark does not expose it
        bus.waitUntilEmpty(int(timeout * 1_000))
    except Exception as error:  # noqa: BLE001  # a stopped session has delivered all events
        log.debug("The listener bus was not waited for: %s", error)


def detach(session: SparkSession, listener: Any, timeout: float) -> bool:
    """Remove a listener; return whether this finished in time. If not, a daemon thread continues."""

    def remove() -> None:
        try:
            session.streams.removeListener(listener)
        except Exception as error:  # noqa: BLE001  # the session may be stopped
            log.debug("The listener was not removed: %s", error)

    if _in_jvm(session):
        remove()
        return True

    def remove_and_wait() -> None:
        """
        Wait for PySpark's event thread after the removal instead of during it.

        PySpark 4.0 to 4.2 waits for the thread while holding the lock that the thread needs: it would wait
        forever, see apache/spark#58897. Other versions are not changed.
        """
        bus: Any = getattr(session.streams, "_sqlb", None)
        thread = getattr(bus, "_execution_thread", None)
        if not isinstance(thread, threading.Thread) or vars(bus).keys() != _BUS_ATTRIBUTES:
            remove()
            return
        bus._execution_thread = SimpleNamespace(join=lambda: None)
        remove()
        with bus._lock:
            was_last = bus._execution_thread is None
            if not was_last:
                bus._execution_thread = thread
        if was_last:
            thread.join()

    try:
        call_on_daemon(remove_and_wait, "kafka-offset-committer-detaches").result(timeout)
    except TimeoutError:
        return False
    return True


def _in_jvm(session: SparkSession) -> bool:
    return getattr(session, "_jvm", None) is not None
