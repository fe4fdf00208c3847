"""A listener is taken off PySpark's own bus of Spark Connect, to which the server is played."""

import threading
from types import SimpleNamespace

import pytest

from airflow_kafka_offsets.spark.listener.attaching import detach

DEADLINE = 10


@pytest.fixture
def session():
    """A session of Spark Connect, and an event on its way that comes while the last listener is taken off."""
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

    bus._execution_thread = thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    yield SimpleNamespace(streams=streams)
    removing.set()
    thread.join(DEADLINE)


def test_an_event_that_comes_while_the_listener_is_taken_off_does_not_block_pyspark_for_ever(session):
    bus, thread = session.streams._sqlb, session.streams._sqlb._execution_thread
    listener = SimpleNamespace()
    bus._listener_bus.append(listener)
    assert detach(session, listener, DEADLINE)
    assert bus._listener_bus == []
    assert bus._execution_thread is None
    assert not thread.is_alive()


def test_the_last_events_of_other_listeners_are_still_waited_for(session):
    bus, thread = session.streams._sqlb, session.streams._sqlb._execution_thread
    ours, other = SimpleNamespace(), SimpleNamespace(onQueryIdle=lambda event: None)
    bus._listener_bus += [ours, other]
    assert detach(session, ours, DEADLINE)
    assert bus._listener_bus == [other]
    assert bus._execution_thread is thread
