"""What a triggerer has read once for all of its waits, and when it reads it again."""

from copy import copy
from typing import Any

import pytest
from memory_broker import LISTENERS, Listener, filled_broker
from memory_clients import open_client

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerUnavailableError, SetupError
from airflow_kafka_offsets.kafka import cached_reader
from airflow_kafka_offsets.kafka.cached_reader import CachedReader
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.readings.positions import group_positions, measure_group_lags
from airflow_kafka_offsets.waits.lag import LagWait

FIRST = TopicPartition("orders", 0)


@pytest.fixture
def broker():
    return filled_broker(range(100))


@pytest.fixture
def reader(broker):
    client: Any = open_client(broker)
    client.commit("g", {FIRST: 100})
    return CachedReader(client)


def recreate(broker, partitions, times):
    broker.delete_topic("orders")
    broker.create("orders", partitions)
    for number in range(partitions):
        broker.append("orders", number, times)


def test_the_commits_of_each_round_are_read_again(broker, reader):
    assert reader.committed("g", [FIRST])[FIRST].offset == 100
    open_client(broker).commit("g", {FIRST: 90})
    assert reader.committed("g", [FIRST])[FIRST].offset == 100
    reader.next_round()
    assert reader.committed("g", [FIRST])[FIRST].offset == 90


def test_an_answer_that_comes_in_a_later_round_is_not_of_that_round(broker, reader, monkeypatch):
    """A wait whose storage has hung asks with a copy, when the storage answers."""
    ask = reader._client.log_ranges

    def answer_late(partitions, **how):
        found = ask(partitions, **how)
        broker.append("orders", 0, range(10))
        reader.next_round()
        return found

    with monkeypatch.context() as late:
        late.setattr(reader._client, "log_ranges", answer_late)
        assert copy(reader).log_ranges([FIRST])[FIRST].end == 100
    assert reader.log_ranges([FIRST])[FIRST].end == 110


@pytest.mark.parametrize("age", [60.0, -1.0])
def test_what_is_known_of_a_topic_is_forgotten_after_a_while(broker, reader, monkeypatch, age):
    """A partition that was added, and the times of records of a topic that was created again."""
    monkeypatch.setattr(cached_reader, "METADATA_AGE", age)
    known = reader.partitions(["orders"]), reader.record_times({FIRST: 40})
    assert known == ({"orders": [0]}, {FIRST: 40})
    recreate(broker, 2, range(500, 600))
    reader.next_round()
    now = reader.partitions(["orders"]), reader.record_times({FIRST: 40})
    assert now == (known if age > 0 else ({"orders": [0, 1]}, {FIRST: 540}))


def test_a_right_on_all_topics_that_is_taken_away_during_a_wait_hides_no_commit(broker):
    broker.create("others")
    both = [FIRST, TopicPartition("others", 0)]
    open_client(broker).commit("g", dict.fromkeys(both, 100), CommitMetadata(dag="d").text(len(both)))
    client: Any = open_client(broker, [("group", "g", "Read"), ("topic", "*", "Read")])
    reader = CachedReader(client)
    for read in (client, reader):
        assert set(group_positions(read, "g", TopicScope())) == set(both)
    listener = LISTENERS[client.servers]
    vars(listener).update(vars(Listener(broker, [("group", "g", "Read"), ("topic", "orders", "Read")])))
    reader.next_round()
    for read in (client, reader):
        with pytest.raises(BrokerAuthenticationError, match="had 2 partitions, but this user sees only 1"):
            group_positions(read, "g", TopicScope())
    assert "sees only 1" in str(measure_group_lags(client, ["g"])["g"])


def test_a_record_that_was_not_there_yet_is_looked_for_again(broker, reader):
    assert reader.record_times({FIRST: 100}) == {FIRST: None}
    broker.append("orders", 0, [100])
    assert reader.record_times({FIRST: 100}) == {FIRST: 100}


def test_the_lag_of_an_added_partition_ends_no_wait(broker, reader, monkeypatch):
    monkeypatch.setattr(cached_reader, "METADATA_AGE", -1.0)
    wait = LagWait(group_id="g", topics="orders", max_lag=0, on_no_commit="earliest")
    assert wait.poll(reader, None).done
    recreate(broker, 2, range(100))
    open_client(broker).commit("g", {FIRST: 100})
    reader.next_round()
    reading = wait.poll(reader, None)
    assert (reading.done, reading.remaining[0]) == (False, 100)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("log_ids", lambda reader: reader.log_ids(["orders"])),
        ("topic_settings", lambda reader: reader.topic_settings(["orders"])),
        ("committed_groups", lambda reader: reader.committed("g", [FIRST])),
    ],
)
def test_an_admin_process_that_cannot_be_started_now_ends_no_wait(broker, monkeypatch, name, ask):
    def refuse(*_: object, **__: object) -> None:
        raise SetupError("cannot be started")

    client: Any = open_client(broker)
    monkeypatch.setattr(client, name, refuse)
    with pytest.raises(BrokerUnavailableError, match="cannot be started"):
        ask(CachedReader(client))
