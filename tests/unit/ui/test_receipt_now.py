"""When the records of a receipt were written, and where that cannot be said."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.ui.receipt_now import ReceiptRow, other_topics, read_times, receipt_question

TP = TopicPartition("orders", 0)
WRITTEN = 1_767_225_600_000
"""2026-01-01, when the record was written."""


def of(offset, log, times, others=()):
    def record_times(offsets, *, within):
        return {tp: times[tp, at] for tp, at in offsets.items() if (tp, at) in times}

    client = SimpleNamespace(log_ranges=lambda wanted: dict.fromkeys(wanted, log), record_times=record_times)
    asked = {"offsets": [[0, "after", *TP, offset]], "rows": 1}
    found = read_times(cast("Any", client), asked, others, 5.0)
    assert found["times"]["before"] == [None]
    return found["times"]["after"][0], found["problems"]


@pytest.mark.parametrize(
    ("offset", "log", "times", "shown"),
    [
        (40, LogRange(10, 120), {(TP, 40): WRITTEN}, "2026-01-01T00:00:00Z"),
        (40, LogRange(41, 120), {}, "deleted"),
        (100, LogRange(10, 100), {(TP, 100): None}, "end"),
        # No answer in time, or a record that cannot be read.
        (40, LogRange(10, 120), {}, None),
    ],
)
def test_an_offset_has_a_time_or_says_why_not(offset, log, times, shown):
    assert of(offset, log, times) == (shown, [])


@pytest.mark.parametrize("orders", [{"orders": "other-id"}, {}])
def test_a_topic_is_another_one_with_another_id_and_may_be_one_without_an_id_in_an_old_receipt(orders):
    ids = LogIds("cluster", {**orders, "same": "same-id", "old": "an-id"})
    client = cast("Any", SimpleNamespace(log_ids=lambda topics: ids))
    assert other_topics(client, {"orders": "its-id", "same": "same-id", "old": None}) == {"orders", "old"}


def test_records_of_a_topic_that_was_created_again_are_not_those_of_the_receipt():
    shown, (problem,) = of(40, LogRange(10, 120), {(TP, 40): WRITTEN}, {"orders"})
    assert shown is None
    assert problem.startswith("not known to be the topic of this receipt: orders.")


def row(partition, before, after, start=0, end=9_000):
    records = None if before is None else after - before
    return ReceiptRow("g", "orders", partition, before, after, records, start, end)


def test_each_offset_of_a_receipt_is_asked_for():
    rows = [row(0, 40, 60), row(1, None, 5)]
    ids = LogIds("cluster", {"orders": "its-id"})
    assert receipt_question(rows, ids, plan_only=True) == {
        "offsets": [
            [0, "before", "orders", 0, 40],
            [0, "after", "orders", 0, 60],
            [1, "after", "orders", 1, 5],
        ],
        "moved": {},
        "topics": {"orders": "its-id"},
        "rows": 2,
    }
    moved = {"g": [["orders", 0, 40, 60], ["orders", 1, None, 5]]}
    assert receipt_question(rows, ids, plan_only=False)["moved"] == moved


def test_of_many_partitions_those_that_moved_furthest_are_asked_for():
    rows = [row(number, 1_000, 1_000 + number) for number in range(2_000)]

    asked = receipt_question(rows, LogIds(), plan_only=False)["offsets"]

    assert {number for number, *_ in asked} == set(range(1_980, 2_000))
