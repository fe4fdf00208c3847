"""Attaches a listener to a session and removes it, without the endless waits of PySpark."""

from __future__ import annotations

import logging
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.spark.listener.threads import DaemonCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_BUS_ATTRIBUTES = {"_sqm", "_listener_bus", "_execution_thread", "_lock"}
_POLL = 0.05
"""Seconds between two checks whether a thread waits for the event thread."""


def attach(session: SparkSession, listener: Any) -> None:
    """
    Attach a listener.

    With Spark Connect this starts PySpark's event thread, which does not end while the server is unreachable.
    Started from a daemon thread, the event thread is a daemon too, so Python does not wait for it at its end.
    """
    if _in_jvm(session):
        session.streams.addListener(listener)
    else:
        # First, before any thread has used the original lock.
        _let_events_end(session)
        DaemonCall(lambda: session.streams.addListener(listener), "kafka-offset-committer-attaches").wait()


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
    try:
        _let_events_end(session)
        DaemonCall(remove, "kafka-offset-committer-detaches").wait(timeout)
    except TimeoutError:
        return False
    return True


def _in_jvm(session: SparkSession) -> bool:
    return getattr(session, "_jvm", None) is not None


def _let_events_end(session: SparkSession) -> None:
    """
    Keep PySpark from waiting for its event thread while holding the lock that this thread needs.

    PySpark 4.0 to 4.2 would wait forever, see apache/spark#58897. Other versions are not changed.
    """
    bus = getattr(session.streams, "_sqlb", None)
    if bus is None or vars(bus).keys() != _BUS_ATTRIBUTES:
        return
    if not isinstance(bus._lock, _BusLock):
        bus._lock = _BusLock(bus._lock)
    if isinstance(bus._execution_thread, threading.Thread):
        bus._execution_thread = SimpleNamespace(join=partial(bus._lock.join, bus._execution_thread))


class _BusLock:
    """
    PySpark's lock; the event thread skips it while the lock's owner waits for that thread to end.

    All other threads wait: a listener that was attached in between would get no events.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.awaited: threading.Thread | None = None
        self._lock = lock
        self._skipped = False

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=_POLL):
            if threading.current_thread() is self.awaited:
                self._skipped = True
                return

    def __exit__(self, *_: object) -> None:
        if self._skipped and threading.current_thread() is self.awaited:
            self._skipped = False
        else:
            self._lock.release()

    def join(self, thread: threading.Thread) -> None:
        """Wait for PySpark's event thread, as the owner of the lock."""
        self.awaited = thread
        try:
            thread.join()
        finally:
            self.awaited = None
