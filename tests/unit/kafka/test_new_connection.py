"""A connection that has asked nothing yet is asked for the cluster before it is asked for logs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets.kafka import logs
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


@pytest.mark.parametrize(("fastest", "asked"), [(math.inf, ["cluster", "log"]), (0.001, ["log"])])
def test_it_is_connected_first(monkeypatch, fastest, asked):
    connection: Any = SimpleNamespace(fastest=fastest)
    session = Session({"bootstrap.servers": "127.0.0.1:1"}, timeout=1, total=None, chunk_size=250)
    seen: list[str] = []

    def read_offsets(_, partitions, *__):
        seen.append("log")
        return dict.fromkeys(partitions, 7), {}

    monkeypatch.setattr(session.connections, "get_several", lambda *_: [connection])
    monkeypatch.setattr(logs, "read_cluster_id", lambda *_: seen.append("cluster"))
    monkeypatch.setattr(logs, "read_offsets", read_offsets)
    assert logs.offsets_at_timestamps(session, Call("reading", "kafka-1:9092", 1.0), [ORDERS_0], 0) == [
        {ORDERS_0: 7}
    ]
    assert seen == asked
