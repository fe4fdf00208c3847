"""The lag of all groups, and the commits of many, when one of them is not as the others."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from memory_broker import MemoryBroker

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    KafkaOffsetsError,
    SetupError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.kafka.cached_reader import CachedReader
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import Commit, LogRange, TopicPartition
from airflow_kafka_offsets.readings.positions import measure_group_lags

ORDERS, GONE, OWN = (TopicPartition(topic, 0) for topic in ("orders", "gone", "__consumer_offsets"))
MANY = [f"g{number}" for number in range(7)]


class Client(OffsetsClient):
    """A broker with three topics, of which the log of one cannot be read."""

    def __init__(self, commits):
        super().__init__(MemoryBroker().config())
        self.commits = commits
        self.bulk_fails: Any = None
        self.in_time: int | None = None
        """Number of groups for which there is an answer before the end of a call."""

    def list_groups(self, states=None):
        return [SimpleNamespace(group_id=group) for group in self.commits]

    def committed_groups(self, wanted, within=None):
        if self.bulk_fails and len(wanted) > 1:
            raise self.bulk_fails
        answered = list(wanted)[: self.in_time]
        late = {group: BrokerUnavailableError("no answer in time") for group in wanted}
        return late | {group: self.commits[group] for group in answered}

    def partitions(self, topics=None):
        return {topic: [0] for topic in topics}

    def sees_all_topics(self):
        return True

    def log_ranges(self, partitions, *, isolation_level="read_uncommitted"):
        if GONE in partitions:
            raise UnknownTopicPartitionError("gone-0 is not there", missing=[GONE])
        return dict.fromkeys(partitions, LogRange(0, 5))


def test_each_group_has_its_lag_or_its_own_error():
    client: Any = Client(
        {
            "fine": {ORDERS: Commit(1, "")},
            "late": {GONE: Commit(1, "")},
            "none": {},
            "burrow": {OWN: Commit(2, "")},
            "beyond": {ORDERS: Commit(6, "")},
        }
    )
    for _ in range(2):
        lags = measure_group_lags(client)
        totals = {group: lag.total for group, lag in lags.items() if isinstance(lag, Lag)}
        assert totals == {"fine": 4, "none": 0, "burrow": 3}
        errors = {group for group, lag in lags.items() if isinstance(lag, KafkaOffsetsError)}
        assert errors == {"beyond", "late"} & client.commits.keys()
        # Without it, the logs of all groups are read together.
        client.commits.pop("late", None)


def test_of_a_group_a_wait_reads_its_own_partitions_and_fails_with_its_own_error():
    client: Any = Client(
        {"fine": {ORDERS: Commit(1, "")}, "denied": BrokerAuthenticationError("no Describe")}
    )
    reader = CachedReader(client)
    reader.read_groups(["fine", "denied"])
    assert reader.committed("fine", [ORDERS, GONE]) == {ORDERS: Commit(1, ""), GONE: None}
    with pytest.raises(BrokerAuthenticationError):
        reader.committed("denied", [ORDERS])


def test_if_there_is_no_time_for_all_groups_it_is_not_always_the_same_ones_that_wait():
    client: Any = Client({group: {ORDERS: Commit(1, "")} for group in MANY})
    client.in_time = 1
    reader = CachedReader(client)
    answered = set()
    for _ in range(1_000):
        reader.next_round()
        reader.read_groups(MANY)
        for group in MANY:
            with suppress(BrokerUnavailableError):
                reader.committed(group, [ORDERS])
                answered.add(group)
    assert answered == set(MANY)


@pytest.mark.parametrize("error", [SetupError("no process"), OSError("too many open files")])
def test_a_process_that_cannot_be_started_is_an_error_that_passes(error):
    client: Any = Client({group: {ORDERS: Commit(1, "")} for group in MANY})
    client.bulk_fails = error
    reader = CachedReader(client)
    reader.next_round()
    reader.read_groups(MANY)
    with pytest.raises(BrokerUnavailableError, match=str(error)) as raised:
        reader.committed("g0", [ORDERS])
    assert raised.value.retriable
    client.bulk_fails = None
    reader.next_round()
    reader.read_groups(MANY)
    assert reader.committed("g0", [ORDERS]) == {ORDERS: Commit(1, "")}


@pytest.mark.parametrize("error", [SetupError("no process"), OSError("too many open files")])
def test_a_process_that_cannot_be_started_for_settings_is_no_reason_to_end_a_wait(error):
    client: Any = Client({})
    client.topic_settings = lambda _: (_ for _ in ()).throw(error)
    with pytest.raises(BrokerUnavailableError, match=str(error)):
        CachedReader(client).topic_settings(["orders"])


def test_a_topic_without_an_answer_is_asked_for_again():
    asked = []

    def settings(topics):
        asked.append(sorted(topics))
        return {topic: {"retention.ms": "1"} if topic == "a" else BrokerError("no") for topic in topics}

    client: Any = Client({})
    client.topic_settings = settings
    reader = CachedReader(client)
    for _ in range(2):
        assert isinstance(reader.topic_settings(["a", "b"])["b"], BrokerError)
    assert asked == [["a", "b"], ["b"]]
