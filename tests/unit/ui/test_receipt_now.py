"""When the records of a receipt were written, and where that cannot be said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.ui.receipt_now import read_times, receipt_question

TP = TopicPartition("orders", 0)
MADE = 1_767_225_600_000
"""2026-01-01, when the receipt was made."""
HOUR = 3_600_000
THEN = LogRange(10, 100)


def of(offset, log, times):
    def record_times(offsets, *, within):
        return {tp: times[tp, at] for tp, at in offsets.items() if (tp, at) in times}

    client = SimpleNamespace(log_ranges=lambda partitions: {TP: log}, record_times=record_times)
    asked = {"offsets": [[0, "after", *TP, offset, *THEN]], "made_ms": MADE, "rows": 1}
    found = read_times(cast("Any", client), asked, 5.0)
    assert found["times"]["before"] == [None]
    return found["times"]["after"][0], found["problems"]


@pytest.mark.parametrize(
    ("offset", "log", "times", "shown"),
    [
        (40, LogRange(10, 120), {(TP, 40): MADE - HOUR}, "2025-12-31T23:00:00Z"),
        (40, LogRange(41, 120), {}, "deleted"),
        (100, LogRange(10, 100), {(TP, 100): None}, "end"),
        # What was written since then is the next record to read.
        (100, LogRange(10, 120), {(TP, 100): MADE + 24 * HOUR}, "2026-01-02T00:00:00Z"),
        # No answer in time, or a record that cannot be read.
        (40, LogRange(10, 120), {}, None),
        # A producer whose clock is a little ahead.
        (99, LogRange(10, 120), {(TP, 99): MADE + HOUR // 2}, "2026-01-01T00:30:00Z"),
    ],
)
def test_an_offset_has_a_time_or_says_why_not(offset, log, times, shown):
    assert of(offset, log, times) == (shown, [])


@pytest.mark.parametrize(
    ("log", "times"),
    [
        # Neither end of a log goes back.
        (LogRange(10, 99), {(TP, 40): MADE - HOUR}),
        (LogRange(0, 120), {(TP, 40): MADE - HOUR}),
        # It was there already, and is newer than the receipt.
        (LogRange(10, 120), {(TP, 40): MADE + 24 * HOUR}),
    ],
)
def test_records_of_a_topic_that_was_created_again_are_not_those_of_the_receipt(log, times):
    shown, (problem,) = of(40, log, times)
    assert shown is None
    assert problem.startswith("topic orders has another log")


def test_a_log_that_is_another_one_is_not_read():
    class Client:
        asked: dict[object, object]

        def log_ranges(self, partitions):
            return {tp: LogRange(0, 50) if tp.topic == "again" else LogRange(20, 120) for tp in partitions}

        def record_times(self, offsets, *, within):
            self.asked = dict(offsets)
            return dict.fromkeys(offsets, MADE - HOUR)

    client = Client()
    offsets = [
        [0, "before", "again", 0, 40, 0, 100],
        [1, "before", "orders", 0, 40, 10, 100],
        [2, "after", "orders", 1, 10, 10, 100],
    ]

    found = read_times(cast("Any", client), {"offsets": offsets, "made_ms": MADE, "rows": 4}, 5.0)

    assert client.asked == {TP: 40}
    assert found["times"] == {
        "before": [None, "2025-12-31T23:00:00Z", None, None],
        "after": [None, None, "deleted", None],
    }
    furthest, again = found["problems"]
    assert furthest == "record times are shown only for the partitions that moved furthest"
    assert again.startswith("topic again has another log")


def row(partition, before, after, start=0, end=9_000):
    records = None if before is None else after - before
    return ("g", "orders", partition, before, after, records, start, end)


def test_each_offset_of_a_receipt_is_asked_for():
    rows = [row(0, 40, 60), row(1, None, 5), row(2, 1, 2, start=None)]
    assert receipt_question(rows, MADE, plan_only=True) == {
        "offsets": [
            [0, "before", "orders", 0, 40, 0, 9_000],
            [0, "after", "orders", 0, 60, 0, 9_000],
            [1, "after", "orders", 1, 5, 0, 9_000],
        ],
        "moved": {},
        "made_ms": MADE,
        "rows": 3,
    }
    moved = {"g": [["orders", 0, 40, 60], ["orders", 1, None, 5], ["orders", 2, 1, 2]]}
    assert receipt_question(rows, MADE, plan_only=False)["moved"] == moved


def test_of_many_partitions_those_that_moved_furthest_are_asked_for():
    rows = [row(number, 1_000, 1_000 + number) for number in range(2_000)]

    asked = receipt_question(rows, MADE, plan_only=False)["offsets"]

    assert {number for number, *_ in asked} == set(range(1_980, 2_000))
