"""When the records of a receipt were written, and where that cannot be said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.ui.receipt_times import read_times, receipt_offsets

TP = TopicPartition("orders", 0)
MADE = 1_767_225_600_000
"""2026-01-01, when the receipt was made."""
HOUR = 3_600_000
THEN = LogRange(10, 100)


def of(offset, log, times):
    def record_times(offsets, *, within):
        return {tp: times[tp, at] for tp, at in offsets.items() if (tp, at) in times}

    client = SimpleNamespace(log_ranges=lambda partitions: {TP: log}, record_times=record_times)
    found = read_times(cast("Any", client), [[*TP, offset, *THEN]], MADE, 5.0)
    return found["times"][0], found["others"]


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
    assert of(40, log, times) == (None, ["orders"])


def test_a_log_that_is_another_one_is_not_read():
    class Client:
        asked: dict[object, object]

        def log_ranges(self, partitions):
            return {tp: LogRange(0, 50) if tp.topic == "again" else LogRange(20, 120) for tp in partitions}

        def record_times(self, offsets, *, within):
            self.asked = dict(offsets)
            return dict.fromkeys(offsets, MADE - HOUR)

    client = Client()
    asked = [["again", 0, 40, 0, 100], ["orders", 0, 40, 10, 100], ["orders", 1, 10, 10, 100]]

    found = read_times(cast("Any", client), asked, MADE, 5.0)

    assert client.asked == {TP: 40}
    assert found == {"times": [None, "2025-12-31T23:00:00Z", "deleted"], "others": ["again"]}


def row(partition, before, after, start=0, end=9_000):
    records = None if before is None else after - before
    return ("g", "orders", partition, before, after, records, start, end)


def test_each_offset_of_a_receipt_is_asked_for():
    assert receipt_offsets([row(0, 40, 60), row(1, None, 5), row(2, 1, 2, start=None)]) == {
        (0, "before"): ["orders", 0, 40, 0, 9_000],
        (0, "after"): ["orders", 0, 60, 0, 9_000],
        (1, "after"): ["orders", 1, 5, 0, 9_000],
    }


def test_of_many_partitions_those_that_moved_furthest_are_asked_for():
    rows = [row(number, 1_000, 1_000 + number) for number in range(2_000)]

    asked = receipt_offsets(rows)

    assert {number for number, _ in asked} == set(range(1_980, 2_000))
