"""A listener is taken off PySpark's own bus of Spark Connect, to which the server is played."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from airflow_kafka_offsets.spark.attaching import detach

DEADLINE = 10


@pytest.fixture
def session():
    """A session with one listener attached, and an event on its way that comes while the listener is taken off."""
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
    idle = []
    listener = SimpleNamespace(onQueryIdle=idle.append)
    bus = session.streams._sqlb
    bus._listener_bus.append(listener)
    assert detach(session, listener, DEADLINE)
    assert len(idle) == 1
    assert bus._listener_bus == []
    assert not bus._lock.locked()
