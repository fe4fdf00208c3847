"""When the records of a receipt were written, and where that cannot be said."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commit, LogRange, TopicPartition
from airflow_kafka_offsets.ui.receipt_now import ReceiptRow, other_topics, read_move_state, read_times

TP = TopicPartition("orders", 0)
WRITTEN = 1_767_225_600_000
"""2026-01-01, when the record was written."""
SKIPPED = ReceiptRow("g", "orders", 1, None, None, None, 0, 9)
"""A partition without a commit, which the move has left alone."""


def of(offset, log, times, others=()):
    def record_times(offsets, *, within):
        return {tp: times[tp, at] for tp, at in offsets.items() if (tp, at) in times}

    client = SimpleNamespace(log_ranges=lambda wanted: dict.fromkeys(wanted, log), record_times=record_times)
    rows = [ReceiptRow("g", *TP, None, offset, None, 0, 120), SKIPPED]
    found = read_times(cast("Any", client), rows, others, 5.0)
    assert found["times"]["before"] == [None, None]
    after, of_skipped = found["times"]["after"]
    assert of_skipped is None
    return after, found["problems"]


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


def test_of_many_partitions_the_times_of_those_that_moved_furthest_are_read():
    rows = [
        ReceiptRow("g", "orders", number, 1_000, 1_000 + number, number, 0, 9_000) for number in range(2_000)
    ]
    asked: dict[TopicPartition, int] = {}

    def record_times(offsets, *, within):
        asked.update(offsets)
        return {}

    client = SimpleNamespace(
        log_ranges=lambda wanted: dict.fromkeys(wanted, LogRange(0, 9_000)), record_times=record_times
    )

    found = read_times(cast("Any", client), rows, (), 5.0)

    assert {tp.partition for tp in asked} == set(range(1_980, 2_000))
    assert found["problems"] == ["record times are shown only for the partitions that moved furthest"]


def test_where_a_move_is_now_is_asked_of_the_partitions_that_have_moved():
    rows = [
        ReceiptRow("g", "orders", number, before, after, None, 0, 9)
        for number, before, after in ((0, 4, 6), (1, None, 5), (2, 3, 3))
    ]
    now = {0: 6, 1: None, 2: 3}
    wanted = []

    def committed(group, partitions):
        wanted.append((group, [tp.partition for tp in partitions]))
        return {tp: at and Commit(at) for tp in partitions for at in [now[tp.partition]]}

    client = cast("Any", SimpleNamespace(committed=committed))
    since = read_move_state(client, [*rows, SKIPPED])
    assert since == {"state": "in part", "tool": None, "at": None}
    assert wanted == [("g", [0, 1])]
