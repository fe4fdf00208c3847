"""Answers about topics are whole, or errors, and come before the deadline."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from memory_clients import Clock, MemoryConsumer, open_client

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka import logs
from airflow_kafka_offsets.kafka.failures import CallError, Failure
from airflow_kafka_offsets.kafka.requests import missing_partitions, read_topics
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window


@pytest.fixture
def slow(monkeypatch):
    """slow(seconds) -> the names that slow answers about topics were asked for."""
    asked: list[str | None] = []
    answer = MemoryConsumer.list_topics

    def make(seconds):
        def list_topics(self, topic=None, timeout=-1.0):
            asked.append(topic)
            self._clock.wait(min(seconds, timeout))
            return answer(self, topic, timeout)

        monkeypatch.setattr(MemoryConsumer, "list_topics", list_topics)
        return asked

    return make


@pytest.fixture
def leads_to(monkeypatch):
    """leads_to(*clusters) has each new Consumer lead to the next cluster, and the last one to the last."""

    def arrange(*clusters):
        rest, answer = list(clusters), MemoryConsumer.list_topics

        def list_topics(self, topic=None, timeout=-1.0):
            if not hasattr(self, "leads_to"):
                self.leads_to = rest.pop(0) if len(rest) > 1 else rest[0]
            found = answer(self, topic, timeout)
            found.cluster_id = self.leads_to
            return found

        monkeypatch.setattr(MemoryConsumer, "list_topics", list_topics)

    return arrange


ORDERS = TopicPartition("orders", 0)
IN_WINDOW = OffsetWindow({ORDERS: OffsetRange(0, 1)}, frozenset([ORDERS]))
ASK = {
    "groups": lambda client: client.committed("etl", [ORDERS]),
    "topics": lambda client: client.partitions(["orders"]),
    "logs": lambda client: client.log_ranges([ORDERS], isolation_level="read_committed"),
    "window": lambda client: commit_window(client, "etl", IN_WINDOW),
    "commit": lambda client: client.commit("etl", {ORDERS: 1}),
    "times": lambda client: client.record_times({ORDERS: 0}),
    "records": lambda client: client.first_since({ORDERS: OffsetRange(0, 1)}, 0),
}


@pytest.mark.parametrize(
    ("clusters", "first", "then"),
    [
        (["another"], "groups", "topics"),
        (["another"], "topics", "groups"),
        (["another"], "topics", "commit"),
        (["cluster-in-memory", "another"], "topics", "logs"),
        (["another"], "groups", "window"),
        (["cluster-in-memory", "another"], "topics", "times"),
        (["another"], "groups", "records"),
        (["another"], "records", "groups"),
        (["cluster-in-memory", "another"], "records", "logs"),
    ],
)
def test_addresses_that_lead_to_two_clusters_are_refused(memory, leads_to, clusters, first, then):
    """Commits of one cluster were compared with the logs of another, and moved to their offsets."""
    memory.create("orders")
    memory.append("orders", 0, [1])
    leads_to(*clusters)
    with open_client(memory) as client:
        ASK[first](client)
        with pytest.raises(UsageError, match="lead to clusters another and cluster-in-memory: name brokers"):
            ASK[then](client)
    assert memory.fetch_all("etl") == ()


def test_a_topic_without_an_answer_does_not_make_the_list_of_all_topics_shorter():
    topics = {
        name: SimpleNamespace(error=KafkaError(code) if code else None, partitions={0: None})
        for name, code in {
            "orders": None,
            "hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "deleted": KafkaError.UNKNOWN_TOPIC_OR_PART,
            "moving": KafkaError.LEADER_NOT_AVAILABLE,
        }.items()
    }
    connection: Any = SimpleNamespace(ask=lambda _: SimpleNamespace(topics=topics, cluster_id=""))
    with pytest.raises(CallError, match=r"LEADER_NOT_AVAILABLE: moving: "):
        read_topics(connection, None, 1.0)
    del topics["moving"]
    assert read_topics(connection, None, 1.0) == {"orders": [0]}


def test_all_requests_about_topics_together_end_at_the_deadline(memory, slow):
    topics = [f"topic-{number}" for number in range(40)]
    asked = slow(2.0)
    with (
        open_client(memory) as client,
        pytest.raises(BrokerUnavailableError, match="within 30 s"),
    ):
        client.partitions(topics)
    assert len(asked) <= 31


def test_the_requests_for_the_reason_of_a_failure_together_end_at_the_deadline(monkeypatch):
    clock, waits = Clock(lambda: 0.0), []
    monkeypatch.setattr("airflow_kafka_offsets.kafka.failures.time", clock)

    def list_topics(*_, timeout):
        waits.append(min(2.0, timeout))
        clock.wait(waits[-1])
        return SimpleNamespace(topics={}, cluster_id="")

    connection: Any = SimpleNamespace(ask=lambda request: request(SimpleNamespace(list_topics=list_topics)))
    missing_partitions(connection, [TopicPartition(f"topic-{number}", 0) for number in range(5)], 5.0)
    assert waits == [2.0, 2.0, 1.0, 0.0, 0.0]


def test_many_topics_are_one_request_and_those_that_it_lacks_are_asked_for_by_name(memory, slow):
    topics = [f"topic-{number}" for number in range(250)]
    for topic in topics:
        memory.create(topic, 2)
    asked = slow(0.2)
    with open_client(memory) as client:
        assert client.partitions([*topics, "none"]) == {topic: [0, 1] for topic in topics}
    assert asked == [None, "none"]


def test_a_topic_that_a_leader_does_not_know_yet_is_not_called_missing(client, make_topic, monkeypatch):
    """A leader that has just started: for some seconds the list of topics knows more than it does."""
    partition = TopicPartition(make_topic(1), 0)

    def not_yet(connection, partitions, *_):
        return {}, dict.fromkeys(partitions, Failure("UNKNOWN_TOPIC_OR_PART", "Broker: Unknown topic"))

    monkeypatch.setattr(logs, "read_offsets", not_yet)
    with pytest.raises(BrokerUnavailableError, match=f"the leader of {partition} does not know it yet"):
        client.log_ranges([partition])
