"""Headroom where the user may read the records of some topics only."""

from __future__ import annotations

import pytest
from memory_broker import MemoryBroker
from memory_clients import open_client

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.readings import retention
from airflow_kafka_offsets.readings.positions import measure_lag
from airflow_kafka_offsets.readings.retention import read_headrooms

MINE, THEIRS = TopicPartition("mine", 0), TopicPartition("theirs", 0)
POSITIONS = {MINE: 5, THEIRS: 5}
LOGS = dict.fromkeys(POSITIONS, LogRange(0, 10))


@pytest.fixture
def client(memory: MemoryBroker) -> OffsetsClient:
    """Of a user who may read the records of one topic, and not those of ``theirs``."""
    for topic in ("mine", "theirs"):
        memory.create(topic, 1, {"retention.ms": "3600000"})
        memory.append(topic, 0, range(10))
    return open_client(
        memory,
        [("topic", "mine", "Read"), ("topic", "theirs", "Describe"), ("topic", "*", "DescribeConfigs")],
    )


def test_a_topic_that_may_not_be_read_hides_no_other(client: OffsetsClient) -> None:
    found = read_headrooms(client, POSITIONS, LOGS, strict=False)
    assert (found[MINE].state, found[MINE].seconds) == ("time", 0)
    assert found[THEIRS].state == "unknown"
    assert "grant it Read on the topics" in found[THEIRS].reason
    with pytest.raises(BrokerAuthenticationError):
        read_headrooms(client, POSITIONS, LOGS)


def test_topic_by_topic_has_an_end(client: OffsetsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BY_TOPIC", 0)
    found = read_headrooms(client, POSITIONS, LOGS, strict=False)
    assert {each.reason for each in found.values()} == {
        "the time of the oldest unread record could not be read"
    }


@pytest.mark.parametrize(
    ("rights", "says"),
    [
        (["Read"], "grant it DescribeConfigs on the topics"),
        (["Describe", "DescribeConfigs"], "grant it Read on the topics"),
    ],
)
def test_a_right_that_is_missing_is_named(memory, make_topic, produce, rights, says):
    tp = TopicPartition(make_topic(1, {"retention.ms": "3600000"}), 0)
    produce(tp.topic, {0: 1})
    with open_client(memory, [("topic", tp.topic, right) for right in rights]) as client:
        logs = client.log_ranges([tp])
        with pytest.raises(BrokerAuthenticationError, match=f"TOPIC_AUTHORIZATION_FAILED.*{says}"):
            read_headrooms(client, {tp: 0}, logs)
        lag = measure_lag(client, "g", {tp: 0}, headroom=True)
        assert lag.headroom is not None
        assert lag.headroom[tp].state == "unknown"
        assert says in lag.headroom[tp].reason
        # What nothing depends on is not missed.
        assert measure_lag(client, "g", {tp: 1}, headroom=True).headroom == {tp: Headroom("none")} or (
            rights != ["Read"]
        )
