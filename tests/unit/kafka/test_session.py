"""Questions about many partitions are cut into requests: by leader, and larger to a broker far away."""

import math
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


def session(*fastest, chunk_size=250):
    """A session whose connections have had such fastest responses, in seconds."""
    made = Session({"bootstrap.servers": "127.0.0.1:1"}, timeout=1, total=None, chunk_size=chunk_size)
    kept: Any = {number: SimpleNamespace(fastest=each) for number, each in enumerate(fastest)}
    made.connections._kept = kept
    return made


def partitions(count, topic="orders"):
    return [TopicPartition(topic, number) for number in range(count)]


@pytest.mark.parametrize(
    ("fastest", "size"),
    [
        ((), 500),
        ((math.inf,), 500),
        ((0.004,), 500),
        ((0.300, 0.004), 500),
        ((0.021, math.inf), 1_250),
        ((0.300, 0.021), 1_250),
    ],
)
def test_far_away_all_that_one_connection_asks_for_is_one_request(fastest, size):
    assert {len(chunk) for chunk in session(*fastest).chunks(partitions(10_000))} == {size}


@pytest.mark.parametrize("fastest", [0.004, 0.021])
def test_few_partitions_are_not_shared_out_more_than_needed(fastest):
    assert [len(chunk) for chunk in session(fastest).chunks(partitions(600))] == [250, 250, 100]


@given(st.integers(0, 3_000), st.integers(1, 600), st.lists(st.floats(0, 1) | st.just(math.inf), max_size=8))
def test_each_partition_is_in_one_chunk(count, chunk_size, fastest):
    wanted = partitions(count)
    chunks = session(*fastest, chunk_size=chunk_size).chunks(wanted)
    assert list(chain(*chunks)) == wanted
    assert all(0 < len(chunk) <= 5 * chunk_size for chunk in chunks)


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


@pytest.mark.parametrize(("fastest", "asked"), [(math.inf, ["cluster", "log"]), (0.001, ["log"])])
def test_a_connection_that_has_asked_nothing_yet_is_asked_for_the_cluster_first(monkeypatch, fastest, asked):
    connection: Any = SimpleNamespace(fastest=fastest)
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
