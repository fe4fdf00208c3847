"""Headroom where the user may read the records of some topics only."""

from __future__ import annotations

import pytest
from memory_broker import MemoryBroker, MemoryClient

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.readings import retention
from airflow_kafka_offsets.readings.retention import read_headrooms

MINE, THEIRS = TopicPartition("mine", 0), TopicPartition("theirs", 0)
POSITIONS = {MINE: 5, THEIRS: 5}
LOGS = dict.fromkeys(POSITIONS, LogRange(0, 10))


@pytest.fixture
def client(memory: MemoryBroker) -> MemoryClient:
    """Of a user who may read the records of one topic, and not those of ``theirs``."""
    for topic in ("mine", "theirs"):
        memory.create(topic, 1, {"retention.ms": "3600000"})
        memory.append(topic, 0, range(10))
    return MemoryClient(memory, [("topic", "mine", "Read"), ("topic", "theirs", "Describe")])


def test_a_topic_that_may_not_be_read_hides_no_other(client: MemoryClient) -> None:
    found = read_headrooms(client, POSITIONS, LOGS, strict=False)
    assert (found[MINE].state, found[MINE].seconds) == ("time", 0)
    assert found[THEIRS].state == "unknown"
    assert "grant it Read on the topics" in found[THEIRS].reason
    with pytest.raises(BrokerAuthenticationError):
        read_headrooms(client, POSITIONS, LOGS)


def test_topic_by_topic_has_an_end(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BY_TOPIC", 0)
    found = read_headrooms(client, POSITIONS, LOGS, strict=False)
    assert {each.reason for each in found.values()} == {
        "the time of the oldest unread record could not be read"
    }
