"""Headroom where records may not be read, or not in time, which says what a lookup by time shows."""

import time

import pytest
from memory_broker import MemoryBroker
from memory_clients import open_client

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.readings.positions import measure_lag
from airflow_kafka_offsets.readings.retention import read_headrooms

MINE, THEIRS = TopicPartition("mine", 0), TopicPartition("theirs", 0)
POSITIONS = {MINE: 5, THEIRS: 5}
LOGS = dict.fromkeys(POSITIONS, LogRange(0, 10))


@pytest.fixture
def restricted(memory: MemoryBroker) -> OffsetsClient:
    """Of a user who may read the records of one topic, and not those of ``theirs``."""
    for topic in ("mine", "theirs"):
        memory.create(topic, 1, {"retention.ms": "3600000"})
        memory.append(topic, 0, range(10))
    return open_client(
        memory,
        [("topic", "mine", "Read"), ("topic", "theirs", "Describe"), ("topic", "*", "DescribeConfigs")],
    )


def test_a_topic_that_may_not_be_read_leaves_all_unknown(restricted: OffsetsClient) -> None:
    found = read_headrooms(restricted, POSITIONS, LOGS, strict=False)
    assert {each.state for each in found.values()} == {"unknown"}
    assert all("grant it Read on the topics" in each.reason for each in found.values())
    with pytest.raises(BrokerAuthenticationError):
        read_headrooms(restricted, POSITIONS, LOGS)


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


# --- not in time

HOUR = 3_600_000
DAY = {"retention.ms": str(24 * HOUR)}
SIX_HOURS = 6 * 3600.0


class TooManyRecords(OffsetsClient):
    """Gets the time of no record before the deadline."""

    def record_times(self, offsets, **_):
        return {}


@pytest.fixture
def without_times(memory):
    return TooManyRecords(memory.config())


def ago(hours):
    return int(time.time() * 1000) - int(hours * HOUR)


def measure(client, positions, least=SIX_HOURS):
    return read_headrooms(client, positions, client.log_ranges(positions), min_headroom=least)


def test_what_is_enough_and_what_is_not_is_known_without_the_records(without_times, make_topic, produce):
    topic = make_topic(4, DAY)
    # One that expires in 4 hours, then one that is new; only the first; only the second; none.
    produce(topic, {0: 2, 1: 1, 2: 1}, timestamps_ms={0: [ago(20), ago(1)], 1: [ago(20)], 2: [ago(1)]})
    at = [TopicPartition(topic, number) for number in range(4)]
    found = measure(without_times, dict.fromkeys(at, 0))
    assert [found[tp].is_below(SIX_HOURS) for tp in at] == [True, True, False, False]
    assert [found[tp].state for tp in at] == ["unknown", "unknown", "time", "none"]
    assert found[at[0]].reason == "less than 6 h: the time of the oldest unread record could not be read"
    assert (str(found[at[2]]), found[at[2]].seconds) == (">6 h", SIX_HOURS)
    after = measure(without_times, {at[0]: 1})[at[0]]
    assert (after.is_below(SIX_HOURS), str(after)) == (False, ">6 h")


def test_an_old_record_behind_a_new_one_is_kept_with_it(without_times, client, make_topic, produce):
    tp = TopicPartition(make_topic(1, DAY), 0)
    produce(tp.topic, {0: 2}, timestamps_ms={0: [ago(1), ago(20)]})
    # Its own time says less, and a lookup more: both are less than what the broker does.
    assert measure(client, {tp: 1})[tp].is_below(SIX_HOURS) is True
    assert measure(without_times, {tp: 1})[tp].is_below(SIX_HOURS) is False


@pytest.mark.parametrize(
    ("config", "hours", "below"),
    [
        # Bytes may delete earlier, so that time alone never is enough; less than enough it may be.
        (DAY | {"retention.bytes": "1000000"}, 1, None),
        (DAY | {"retention.bytes": "1000000"}, 20, True),
        # Compaction may remove the record that had kept the segment.
        (DAY | {"cleanup.policy": "compact,delete"}, 1, None),
        (DAY | {"cleanup.policy": "compact,delete"}, 20, None),
        # There is nothing that time could decide.
        ({"retention.ms": "-1", "retention.bytes": "1000000"}, 1, None),
        ({"retention.ms": "-1"}, 20, False),
        # More than the topic keeps is never there.
        ({"retention.ms": str(5 * HOUR)}, 0, True),
        ({"retention.ms": str(2**63 - 1)}, 20, False),
    ],
)
def test_what_else_deletes_records_is_not_forgotten(without_times, make_topic, produce, config, hours, below):
    tp = TopicPartition(make_topic(1, config), 0)
    produce(tp.topic, {0: 1}, timestamps_ms={0: [ago(hours)]})
    assert measure(without_times, {tp: 0})[tp].is_below(SIX_HOURS) is below
