"""The rates of a pipeline that somebody watches."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.ui.partition_sets import partition_set
from airflow_kafka_offsets.ui.watched_rates import WatchedRates

NOTHING = {"records_in": None, "records_out": None, "lag_falls": None, "seconds_left": None}


def reading(committed, log_end, over="a", headroom_state="none"):
    lags = [None if at is None else end - at for at, end in zip(committed, log_end, strict=True)]
    partitions = {"lag": lags, "log_end": log_end, "committed": committed, "headroom_state": [headroom_state]}
    return {"totals": {"over": over}, "partitions": partitions}


@pytest.fixture
def watch():
    """watch(readings, every=10) -> the rates after these polls."""

    def watch(readings, every=10.0):
        times = iter(1_000 + every * number for number in range(1_000))
        rates = WatchedRates(lambda: next(times))
        return [rates.after_reading("pipeline", each) for each in readings][-1]

    return watch


def falling(polls=6):
    return [reading([100 * n, 50 * n], [10_000 + 20 * n, 1_000 + 10 * n]) for n in range(polls)]


def test_rates_are_known_after_a_few_polls(watch):
    assert watch(falling(4)) == NOTHING
    # Lag falls by 80 and 40 in 10 s; from 11,000 records, of which one partition has 10,000.
    assert watch(falling(6)) == {
        "records_in": 3.0,
        "records_out": 15.0,
        "lag_falls": 12.0,
        "seconds_left": 1_200.0,
    }


def test_what_comes_in_is_known_although_nobody_reads(watch):
    found = watch([reading([5], [100 * n]) for n in range(6)])
    assert found == {**NOTHING, "records_in": 10.0}


@pytest.mark.parametrize(
    "last",
    [
        reading([None, 300], [10_200, 1_100]),
        reading([600, 300], [10_200, 1_100], headroom_state="lost"),
    ],
)
def test_there_is_no_time_left_where_lag_is_not_all(watch, last):
    assert watch([*falling(6), last])["seconds_left"] is None


def test_other_partitions_and_a_long_absence_begin_again(watch):
    assert watch([*falling(6), reading([600, 300], [10_200, 1_100], over="b")]) == NOTHING
    assert watch(falling(6), every=121.0) == NOTHING


def test_the_same_partitions_have_the_same_name():
    assert partition_set([("a", 1), ("b", 0)]) == partition_set([("b", 0), ("a", 1)])
    assert len({partition_set(each) for each in ([("a", 1)], [("a", 1)] * 2, [("a", 11)], [("b", 1)])}) == 4
    assert partition_set([]) is None
