"""Which offsets without a row are lost records, and of which it cannot be said."""

import pytest
from memory_broker import filled_broker
from memory_clients import open_client

from airflow_kafka_offsets.model.certificate import MissingOffsets
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.missing_records import find_missing

TP = TopicPartition("orders", 0)
WINDOW = OffsetWindow({TP: OffsetRange(0, 12)})
MISSING = {TP: merge([(1, 4), (8, 12)])}


@pytest.fixture
def broker():
    return filled_broker(range(10))


def find(broker, records=(), unread=(), window=WINDOW):
    with open_client(broker) as client:
        return find_missing(client, window, MISSING, lambda _: ({TP: merge(records)}, {TP: merge(unread)}))


def test_lost_is_what_the_log_has_and_the_table_has_not(broker):
    found = find(broker, [(0, 2), (3, 9)])
    assert found.lost == {TP: merge([(1, 2), (3, 4), (8, 9)])}


def test_behind_the_log_end_and_before_its_start_nothing_can_be_said(broker):
    broker.delete_records("orders", 0, 2)
    found = find(broker, unread=[(8, 9)]).undecided
    assert {reason: ranges for reason, ranges in found.items() if ranges} == {
        "other_log": {TP: merge([(10, 12)])},
        "retention": {TP: merge([(1, 2)])},
        "not_read": {TP: merge([(8, 9)])},
    }


def test_of_a_topic_that_is_gone_nothing_can_be_said(broker):
    broker.delete_topic("orders")
    found = find(broker)
    assert found == MissingOffsets(undecided={"other_log": MISSING}, problems=found.problems)
    assert "orders-0 is not on" in found.problems[0]


def test_of_a_topic_that_was_created_again_nothing_can_be_said(broker):
    with open_client(broker) as client:
        window = OffsetWindow(WINDOW.ranges, source={"logs": client.log_ids(["orders"]).as_json()})
    broker.delete_topic("orders")
    broker.create("orders")
    broker.append("orders", 0, range(12))
    found = find(broker, [(0, 12)], window=window)
    assert found == MissingOffsets(undecided={"other_log": MISSING}, problems=found.problems)
    assert "was deleted and created again" in found.problems[0]
