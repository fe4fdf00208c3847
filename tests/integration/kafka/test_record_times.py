"""Which time does the log have at an offset, and does asking for it leave anything behind?"""

import threading
import time
from functools import partial

import pytest
from confluent_kafka import Consumer
from deadlines import until

from airflow_kafka_offsets.kafka import connection
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.connection import OWN_GROUP
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition

pytestmark = pytest.mark.integration

FIRST = 1_357_000_000_000
"""In 2013: Kafka must be told to keep such records."""
FOREVER = {"retention.ms": "-1"}
GRACE = 3.0


def times(count, start=FIRST):
    return [start + number * 1000 for number in range(count)]


def test_more_partitions_than_are_asked_for_at_once(client, make_topic, produce):
    topic = make_topic(partitions=300, config=FOREVER)
    partitions = [TopicPartition(topic, number) for number in range(300)]
    stamps = {number: times(2, FIRST + number) for number in range(300)}
    produce(topic, dict.fromkeys(range(300), 2), timestamps_ms=stamps)
    start = time.monotonic()
    found = client.record_times(dict.fromkeys(partitions, 1), within=5)
    assert time.monotonic() - start < 5
    assert found == {tp: FIRST + tp.partition + 1000 for tp in partitions}


def test_batches_larger_than_a_fetch_come_too(client, make_topic, produce):
    topic = make_topic(partitions=20, config=FOREVER)
    large = b"x" * 200_000
    produce(topic, [{"value": large, "partition": n, "timestamp": FIRST + n} for n in range(20)])
    partitions = [TopicPartition(topic, number) for number in range(20)]
    assert client.record_times(dict.fromkeys(partitions, 0)) == {
        tp: FIRST + tp.partition for tp in partitions
    }


def test_an_aborted_record_counts_for_one_isolation_level_only(
    client, make_topic, produce, send_in_transaction
):
    partition = TopicPartition(make_topic(partitions=1, config=FOREVER), 0)
    send_in_transaction(partition, FIRST, abort=True)
    produce(partition.topic, {0: 1}, timestamps_ms={0: [FIRST + 7]})
    # The broker confirms an abort before it has written the marker.
    stable = partial(client.log_ranges, [partition], isolation_level="read_committed")
    until(lambda: stable() == {partition: LogRange(0, 3)}, "the marker")
    assert client.record_times({partition: 0}) == {partition: FIRST}
    assert client.record_times({partition: 0}, isolation_level="read_committed") == {partition: FIRST + 7}


def test_records_with_times_in_microseconds_are_found(client, make_topic, produce):
    microseconds = 1_700_000_000_000_000
    topic = make_topic(1, FOREVER | {"message.timestamp.after.max.ms": str(2**63 - 1)})
    partition = TopicPartition(topic, 0)
    produce(topic, {0: 3}, timestamps_ms={0: [microseconds, microseconds + 1, microseconds + 2]})
    assert client.record_times({partition: 1}) == {partition: microseconds + 1}
    assert client.offsets_for_time([partition], 1_800_000_000_000) == {partition: 0}


def test_nothing_is_committed_and_no_group_and_no_thread_is_left(bootstrap_servers, make_topic, produce):
    topic = make_topic(partitions=1)
    produce(topic, {0: 3})
    before = set(threading.enumerate())
    with OffsetsClient({"bootstrap.servers": bootstrap_servers, "group.id": topic}, timeout=20) as client:
        assert client.record_times({TopicPartition(topic, 0): 0})
        groups = {listed.group_id for listed in client.list_groups()}
        assert not groups & {topic, OWN_GROUP}
        assert client.committed_everywhere(OWN_GROUP) == {}
    assert set(threading.enumerate()) == before


def test_one_consumer_reads_all_of_them_wherever_they_are(
    bootstrap_servers, make_topic, produce, monkeypatch
):
    made = []

    class Counted(Consumer):
        def __init__(self, settings):
            made.append(settings)
            super().__init__(settings)

    monkeypatch.setattr(connection, "Consumer", Counted)
    topic = make_topic(partitions=2, config=FOREVER)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(topic, {0: 50, 1: 5}, timestamps_ms={0: times(50), 1: times(5)})
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        # Back and forth: what was fetched for another question is no answer.
        for offset in (40, 3, 49, 0, 50, 50, 12, 50):
            expected = FIRST + offset * 1000 if offset < 50 else None
            assert client.record_times({one: offset, other: 2}) == {one: expected, other: FIRST + 2000}
        produce(topic, {0: 1}, timestamps_ms={0: [FIRST - 1]})
        assert client.record_times({one: 50}) == {one: FIRST - 1}
    # One for the logs, one for the records.
    assert len([each for each in made if each["group.id"] == OWN_GROUP and "fetch.wait.max.ms" in each]) == 1
