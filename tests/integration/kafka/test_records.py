"""Records that are looked up without a group: at which offsets there are some, their times, their sizes."""

import logging
import time
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer
from deadlines import until

from airflow_kafka_offsets.kafka import connection, fetching, record_reads
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.connection import OWN_GROUP
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition

pytestmark = pytest.mark.integration

FIRST = 1_357_000_000_000
"""In 2013: Kafka must be told to keep such records."""
FOREVER = {"retention.ms": "-1"}


def times(count, start=FIRST):
    return [start + number * 1000 for number in range(count)]


# --- offsets


def look_up(client, ranges):
    found = client.record_offsets({tp: merge(its) for tp, its in ranges.items()}, within=20)
    return dict(found.records), dict(found.unread)


@pytest.fixture
def transactions(client, send_in_transaction):
    """transactions(partition, "cac...") commits or aborts a record each, and adds a marker."""

    def write(partition, outcomes):
        end = client.log_ranges([partition])[partition].end + 2 * len(outcomes)
        for outcome in outcomes:
            send_in_transaction(partition, time.time_ns() // 1_000_000, abort=outcome == "a")
        # The broker writes a marker some time after it has confirmed the end of a transaction.
        stable = partial(client.log_ranges, [partition], isolation_level="read_committed")
        until(lambda: stable()[partition].end == end, "the marker of the last transaction")

    return write


def test_records_in_ranges_and_nothing_between(client, make_topic, produce):
    topic = make_topic(3)
    produce(topic, {0: 20, 1: 5})
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    found = look_up(client, {zero: [(0, 2), (7, 8), (19, 20)], one: [(4, 5)]})
    assert found == ({zero: merge([(0, 2), (7, 8), (19, 20)]), one: merge([(4, 5)])}, {})
    assert look_up(client, {}) == ({}, {})
    assert look_up(client, {two: []}) == ({}, {})


def test_markers_and_aborted_records_are_no_records(client, make_topic, transactions):
    partition = TopicPartition(make_topic(1), 0)
    transactions(partition, "caacca")
    # Committed 0, 6 and 8, aborted 2, 4 and 10, and a marker behind each.
    records = merge([(0, 1), (6, 7), (8, 9)])
    assert look_up(client, {partition: [(0, 12)]}) == ({partition: records}, {})
    for gap in ((1, 6), (7, 8), (9, 12), (10, 11), (11, 12)):
        assert look_up(client, {partition: [gap]}) == ({}, {})
    assert look_up(client, {partition: [(0, 7), (9, 12)]})[0] == {partition: merge([(0, 1), (6, 7)])}


def test_the_end_of_the_log_may_be_all_markers(client, make_topic, transactions, produce):
    partition = TopicPartition(make_topic(1), 0)
    produce(partition.topic, {0: 2})
    transactions(partition, "a" * 30)
    assert look_up(client, {partition: [(1, 62)]}) == ({partition: merge([(1, 2)])}, {})


def test_far_ranges_are_read_without_what_is_between(client, make_topic, produce, monkeypatch):
    monkeypatch.setattr(record_reads, "_LARGEST_GAP_READ", 50)
    topic = make_topic(2)
    produce(topic, {0: 3_000, 1: 3_000})
    partitions = [TopicPartition(topic, number) for number in range(2)]
    ranges = {tp: [(at, at + 2) for at in (3, 20, 900, 1_700, 2_998)] for tp in partitions}
    assert look_up(client, ranges) == ({tp: merge(its) for tp, its in ranges.items()}, {})


def test_more_partitions_than_are_read_at_once(client, make_topic, produce, monkeypatch):
    monkeypatch.setattr(fetching, "_PARTITIONS", 2)
    topic = make_topic(5)
    produce(topic, dict.fromkeys(range(5), 4))
    ranges = {TopicPartition(topic, number): [(number % 3, 3)] for number in range(5)}
    assert look_up(client, ranges) == ({tp: merge(its) for tp, its in ranges.items()}, {})


def test_after_enough_the_rest_stays_unread(client, make_topic, produce, monkeypatch):
    monkeypatch.setattr(record_reads, "_MOST_RECORDS", 1)
    topic = make_topic(2)
    produce(topic, {0: 100, 1: 100})
    zero, one = (TopicPartition(topic, number) for number in range(2))
    records, unread = look_up(client, {zero: [(0, 100)], one: [(0, 100)]})
    read = sum(end - start for ranges in records.values() for start, end in ranges)
    left = sum(end - start for ranges in unread.values() for start, end in ranges)
    assert read + left == 200
    assert read >= 1


def test_what_retention_takes_is_unread(client, make_topic, produce, delete_records):
    partition = TopicPartition(make_topic(1), 0)
    produce(partition.topic, {0: 10})
    delete_records(partition.topic, {0: 6})
    assert look_up(client, {partition: [(2, 8)]}) == ({}, {partition: merge([(2, 8)])})


def test_progress_is_logged(client, make_topic, produce, caplog, monkeypatch):
    monkeypatch.setattr(record_reads, "_PROGRESS", 0.0)
    partition = TopicPartition(make_topic(1), 0)
    produce(partition.topic, {0: 10})
    with caplog.at_level(logging.INFO, "airflow_kafka_offsets"):
        look_up(client, {partition: [(2, 5)]})
    assert "records to look up 3 offsets" in caplog.text


# --- times


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


# --- sizes


@pytest.fixture(scope="module")
def topic(make_topic, bootstrap_servers):
    name = make_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(1_000):
        producer.produce(name, b"v" * 70, b"k" * 10, partition=0, headers=[("header", b"x" * 14)])
        if number < 3:
            producer.produce(name, None, b"k" * 7, partition=1)
    producer.flush(30)
    return name


def test_a_record_counts_with_key_value_and_headers(topic, bootstrap_servers):
    full, few = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        for _ in range(2):
            sizes = client.record_sizes({full: 900, few: 1})
            assert set(sizes[full]) == {100}
            assert 0 < len(sizes[full]) <= 600
            assert sizes[few] == [7, 7]
        # At the end there is none.
        assert client.record_sizes({full: 1_000}) == {}
        assert client.record_sizes({}) == {}
