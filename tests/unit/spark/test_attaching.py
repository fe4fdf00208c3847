"""A listener is taken off PySpark's own bus of Spark Connect, to which the server is played."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from airflow_kafka_offsets.spark.listener.attaching import detach

DEADLINE = 10


@pytest.fixture
def session():
    """
    A session with one listener attached, and an event on its way that comes while the listener is taken off.
    """
    query = pytest.importorskip("pyspark.sql.connect.streaming.query")
    from pyspark.sql.streaming.listener import QueryIdleEvent

    removing = threading.Event()
    client = SimpleNamespace(execute_command=lambda command: removing.set())
    streams = SimpleNamespace(_session=SimpleNamespace(client=client))
    bus = streams._sqlb = query.StreamingQueryListenerBus(streams)
    streams.removeListener = bus.remove

    def deliver():
        removing.wait(DEADLINE)
        bus.post_to_all(QueryIdleEvent("q-1", "r-1", "2026-01-01T00:00:00.000Z"))

    bus._execution_thread = threading.Thread(target=deliver, daemon=True)
    bus._execution_thread.start()
    yield SimpleNamespace(streams=streams)
    removing.set()


def test_an_event_that_comes_while_the_listener_is_taken_off_does_not_block_pyspark_for_ever(session):
    bus, own_lock = session.streams._sqlb, session.streams._sqlb._lock
    idle, held = [], []

    def take(event):
        idle.append(event)
        # Else somebody could attach a listener now, which would get no events.
        held.append(own_lock.locked())

    listener = SimpleNamespace(onQueryIdle=take)
    bus._listener_bus.append(listener)
    assert detach(session, listener, DEADLINE)
    assert len(idle) == 1
    assert held == [True]
    assert bus._listener_bus == []
    assert not own_lock.locked()


def test_pysparks_lock_still_keeps_others_apart(session):
    detach(session, SimpleNamespace(), DEADLINE)
    lock, entered = session.streams._sqlb._lock, threading.Event()

    def enter():
        with lock:
            entered.set()

    with lock:
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.2)
    assert entered.wait(DEADLINE)
    other.join(DEADLINE)
