"""Partitions that one broker leads are asked for together."""

from __future__ import annotations

from array import array

from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition

CONFIG = {"bootstrap.servers": "127.0.0.1:1"}


def session(chunk_size=4):
    return Session(CONFIG, timeout=1, total=None, chunk_size=chunk_size)


def partitions(topic, count):
    return [TopicPartition(topic, number) for number in range(count)]


def test_partitions_of_one_broker_come_together():
    asking = session()
    asking.leaders = {"orders": array("i", [1, 2, 3, 1, 2, 3]), "clicks": array("i", [3, 1])}
    ordered = asking.by_leader(partitions("clicks", 2) + partitions("orders", 6))
    assert [f"{tp}" for tp in ordered] == [
        *("clicks-1", "orders-0", "orders-3"),
        *("orders-1", "orders-4"),
        *("clicks-0", "orders-2", "orders-5"),
    ]


def test_what_is_not_known_is_asked_for_all_the_same():
    asking = session()
    asking.leaders = {"orders": array("i", [2, 1])}
    wanted = partitions("orders", 4) + partitions("unknown", 2)
    ordered = asking.by_leader(wanted)
    assert sorted(ordered) == wanted
    assert ordered[-2:] == [TopicPartition("orders", 1), TopicPartition("orders", 0)]


def test_one_request_needs_no_order():
    asking = session()
    asking.leaders = {"orders": array("i", [2, 1])}
    assert asking.by_leader(partitions("orders", 2)) == partitions("orders", 2)
