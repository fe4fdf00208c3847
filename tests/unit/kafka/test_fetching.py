"""Which Consumers that fetch records stay open."""

import time
from types import SimpleNamespace
from typing import Any

from airflow_kafka_offsets.kafka import connection, fetching
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition

ORDERS = TopicPartition("orders", 0)


def nothing(*_):
    """Stands for what a Consumer would be asked."""


def test_one_that_was_opened_as_the_time_ran_out_is_there_for_the_next_call(monkeypatch):
    """With an oauth_cb that takes long, no call would be answered otherwise."""
    opened: list[Any] = []

    def open_slowly(*_):
        time.sleep(0.2)
        consumer = SimpleNamespace(close=lambda: None)
        opened.append(SimpleNamespace(consumer=consumer, ask=nothing, forget_errors=lambda: True))
        return opened[-1]

    monkeypatch.setattr(connection, "Connection", open_slowly)
    monkeypatch.setattr(fetching, "read_offsets", nothing)
    session: Any = SimpleNamespace(config={}, kept=[])
    connections = fetching.FetchConnections(session, {})
    call = Call("reading", "kafka-1:9092", 0.1)
    found = connections.read({ORDERS: OffsetRange(3, 5)}, nothing, call, "read_uncommitted")
    assert found == ({ORDERS: 3}, set())
    assert connections._connections.get("read_uncommitted") is opened[0]
