"""Questions about many partitions are cut into requests, by leader."""

from array import array
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.kafka import logs
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition


def session(chunk_size=250):
    return Session({"bootstrap.servers": "127.0.0.1:1"}, timeout=1, total=None, chunk_size=chunk_size)


def partitions(count, topic="orders"):
    return [TopicPartition(topic, number) for number in range(count)]


@pytest.mark.parametrize(("count", "sizes"), [(600, [250, 250, 100]), (10_000, [500] * 20)])
def test_chunks_grow_only_if_every_connection_has_one(count, sizes):
    assert [len(chunk) for chunk in session().chunks(partitions(count))] == sizes


@given(st.integers(0, 3_000), st.integers(1, 600))
def test_each_partition_is_in_one_chunk(count, chunk_size):
    wanted = partitions(count)
    chunks = session(chunk_size).chunks(wanted)
    assert list(chain(*chunks)) == wanted
    assert all(0 < len(chunk) <= 2 * chunk_size for chunk in chunks)


def test_partitions_of_one_broker_come_together():
    asking = session(chunk_size=4)
    asking.leaders = {"orders": array("i", [1, 2, 3, 1, 2, 3]), "clicks": array("i", [3, 1])}
    ordered = asking.by_leader(partitions(2, "clicks") + partitions(6))
    assert [f"{tp}" for tp in ordered] == [
        *("clicks-1", "orders-0", "orders-3"),
        *("orders-1", "orders-4"),
        *("clicks-0", "orders-2", "orders-5"),
    ]


def test_what_is_not_known_is_asked_for_all_the_same_and_one_request_needs_no_order():
    asking = session(chunk_size=4)
    asking.leaders = {"orders": array("i", [2, 1])}
    wanted = partitions(4) + partitions(2, "unknown")
    ordered = asking.by_leader(wanted)
    assert sorted(ordered) == wanted
    assert ordered[-2:] == [TopicPartition("orders", 1), TopicPartition("orders", 0)]
    assert asking.by_leader(partitions(2)) == partitions(2)


@pytest.mark.parametrize(("cluster", "asked"), [("", ["cluster", "log"]), ("known", ["log"])])
def test_a_connection_that_has_asked_nothing_yet_is_asked_for_the_cluster_first(monkeypatch, cluster, asked):
    connection: Any = SimpleNamespace(cluster_id=cluster)
    asking, (wanted,) = session(), partitions(1)
    seen: list[str] = []

    def read_offsets(_, partitions, *__):
        seen.append("log")
        return dict.fromkeys(partitions, 7), {}

    monkeypatch.setattr(asking.connections, "get_several", lambda *_: [connection])
    monkeypatch.setattr(logs, "read_cluster_id", lambda *_: seen.append("cluster"))
    monkeypatch.setattr(logs, "read_offsets", read_offsets)
    found = logs.offsets_at_timestamps(asking, Call("reading", "kafka-1:9092", 1.0), [wanted], 0)
    assert found == [{wanted: 7}]
    assert seen == asked
