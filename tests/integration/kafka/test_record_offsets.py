"""At which offsets of some ranges is there a record, and what is read to find that out?"""

import logging
import threading
import time
from functools import partial

import pytest
from deadlines import until

from airflow_kafka_offsets.kafka import fetching, record_reads
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


def look_up(client, ranges, **parameters):
    found = client.record_offsets(
        {tp: merge(its) for tp, its in ranges.items()}, **{"within": 20, **parameters}
    )
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


def test_after_enough_the_rest_stays_unread(client, make_topic, produce):
    topic = make_topic(2)
    produce(topic, {0: 100, 1: 100})
    zero, one = (TopicPartition(topic, number) for number in range(2))
    records, unread = look_up(client, {zero: [(0, 100)], one: [(0, 100)]}, most=1)
    read = sum(end - start for ranges in records.values() for start, end in ranges)
    left = sum(end - start for ranges in unread.values() for start, end in ranges)
    assert read + left == 200
    assert read >= 1


def test_what_retention_takes_is_unread(client, make_topic, produce, delete_records):
    partition = TopicPartition(make_topic(1), 0)
    produce(partition.topic, {0: 10})
    delete_records(partition.topic, {0: 6})
    assert look_up(client, {partition: [(2, 8)]}) == ({}, {partition: merge([(2, 8)])})


def test_nothing_is_left_behind_and_progress_is_logged(
    bootstrap_servers, make_topic, produce, caplog, monkeypatch
):
    monkeypatch.setattr(record_reads, "_PROGRESS", 0.0)
    partition = TopicPartition(make_topic(1), 0)
    produce(partition.topic, {0: 10})
    before = threading.active_count()
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        with caplog.at_level(logging.INFO, "airflow_kafka_offsets"):
            look_up(client, {partition: [(2, 5)]})
    assert "records to look up 3 offsets" in caplog.text
    assert threading.active_count() == before
