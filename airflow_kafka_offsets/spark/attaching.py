"""Attaches a listener to a session and takes it off, also where PySpark would wait for ever."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.spark.time_limit import DaemonCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_PARTS_OF_THE_BUS = {"_sqm", "_listener_bus", "_execution_thread", "_lock"}


def attach(session: SparkSession, listener: Any) -> None:
    """
    Attach a listener.

    With Spark Connect this starts PySpark's thread for events, which does not end while the server is gone. Python
    waits at its end for threads that are no daemons; a thread inherits that it is one from the one that starts it.
    """
    if _in_jvm(session):
        session.streams.addListener(listener)
    else:
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
    if bus is not None and vars(bus).keys() == _PARTS_OF_THE_BUS:
        thread = bus._execution_thread
        if isinstance(thread, threading.Thread):
            bus._execution_thread = _JoinedWithoutLock(thread, bus._lock)


class _JoinedWithoutLock:
    """
    A thread for which is waited without a lock that is held.

    :param thread: the thread.
    :param lock: held by who waits.
    """

    def __init__(self, thread: threading.Thread, lock: threading.Lock) -> None:
        self._thread = thread
        self._lock = lock

    def join(self) -> None:
        self._lock.release()
        try:
            self._thread.join()
        finally:
            self._lock.acquire()
