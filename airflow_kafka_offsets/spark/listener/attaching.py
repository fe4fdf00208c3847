"""Attaches a listener to a session and takes it off, also where PySpark would wait for ever."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.spark.listener.time_limit import DaemonCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_PARTS_OF_THE_BUS = {"_sqm", "_listener_bus", "_execution_thread", "_lock"}
_LOOK = 0.05
"""Seconds between two looks whether the thread for events is waited for."""


def attach(session: SparkSession, listener: Any) -> None:
    """
    Attach a listener.

    With Spark Connect this starts PySpark's thread for events, which does not end while the server is gone. Python
    waits at its end for threads that are no daemons; a thread inherits that it is one from the one that starts it.
    """
    if _in_jvm(session):
        session.streams.addListener(listener)
    else:
        # Before there is a thread that has seen the other lock.
        _let_events_end(session)
        DaemonCall(lambda: session.streams.addListener(listener), "kafka-offset-committer-attaches").wait()


def detach(session: SparkSession, listener: Any, timeout: float) -> bool:
    """
    Take a listener off.

    :param timeout: seconds; with Spark Connect PySpark itself waits ten minutes for a server that is gone.
    :return: whether it is off; if not, a daemon thread goes on trying.
    """

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
    Keep PySpark from waiting for its thread for events while it holds the lock which that needs for another event.

    PySpark 4.0 to 4.2 would wait for ever, see apache/spark#58897. Other versions are left alone.
    """
    bus = getattr(session.streams, "_sqlb", None)
    if bus is None or vars(bus).keys() != _PARTS_OF_THE_BUS:
        return
    if not isinstance(bus._lock, _BusLock):
        bus._lock = _BusLock(bus._lock)
    if isinstance(bus._execution_thread, threading.Thread):
        bus._execution_thread = _Awaited(bus._execution_thread, bus._lock)


class _BusLock:
    """
    PySpark's lock, which its thread for events does without while somebody waits under it for that thread to end.

    All others wait: who attaches a listener in between would have one that gets no events.

    :param lock: PySpark's own.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.awaited: threading.Thread | None = None
        self._lock = lock
        self._without = False

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=_LOOK):
            if threading.current_thread() is self.awaited:
                self._without = True
                return

    def __exit__(self, *_: object) -> None:
        if self._without and threading.current_thread() is self.awaited:
            self._without = False
        else:
            self._lock.release()


class _Awaited:
    """
    PySpark's thread for events, for which is waited with the lock held.

    :param thread: the thread.
    :param lock: the lock.
    """

    def __init__(self, thread: threading.Thread, lock: _BusLock) -> None:
        self._thread = thread
        self._lock = lock

    def join(self) -> None:
        self._lock.awaited = self._thread
        try:
            self._thread.join()
        finally:
            self._lock.awaited = None
