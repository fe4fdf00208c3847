from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import NoCommitError
from airflow_kafka_offsets.model.lag import Lag, past_log_start, remaining
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_lag_is_log_end_minus_position():
    lag = Lag.measure("g", {A: 7, B: 10}, {A: LogRange(0, 10), B: LogRange(0, 10)})
    assert (lag.total, lag.max) == (3, 3)
    assert lag.within(3, 3)
    assert not lag.within(2, None)
    assert not lag.within(None, 2)


def test_lag_is_never_below_zero():
    assert Lag.measure("g", {A: 12}, {A: LogRange(0, 10)}).total == 0


def test_records_that_retention_deleted_are_lost_and_not_lag():
    lag = Lag.measure("g", {A: 3}, {A: LogRange(5, 10)})
    assert (lag.total, lag.lost) == (5, 2)
    assert "2 records lost to retention" in lag.table()


def test_without_a_policy_a_missing_commit_has_no_lag():
    lag = Lag.measure("g", {A: None}, {A: LogRange(0, 10)})
    assert lag.as_json()["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "committed": None,
            "log_start": 0,
            "log_end": 10,
            "lag": None,
            "lost": 0,
        }
    ]


@pytest.mark.parametrize(("policy", "counts"), [("earliest", 6), ("latest", 0), ("zero", 0), ("skip", 0)])
def test_a_missing_commit_counts_as_the_policy_says(policy, counts):
    assert Lag.measure("g", {A: None}, {A: LogRange(4, 10)}, policy).total == counts


def test_a_missing_commit_fails_unless_the_log_is_empty():
    with pytest.raises(NoCommitError, match="no committed offset for t-0"):
        Lag.measure("g", {A: None, B: None}, {A: LogRange(4, 10), B: LogRange(3, 3)}, "fail")
    assert Lag.measure("g", {B: None}, {B: LogRange(3, 3)}, "fail").total == 0


def test_what_remains_to_a_target():
    assert remaining({A: 3, B: 10}, {A: 5, B: 10}) == {A: 2}
    assert remaining({}, {A: 5}) == {A: 5}
    assert remaining({A: None}, {A: 0}) == {}


def test_nobody_waits_for_records_that_are_gone():
    assert past_log_start({A: None, B: None}, {A: 5, B: 5}, {A: LogRange(5, 9), B: LogRange(4, 9)}) == {B: 5}


positions = st.none() | st.integers(0, 100)
logs = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda ends: LogRange(min(ends), max(ends)))


@given(positions, logs, st.sampled_from(["earliest", "latest", "skip", "zero"]))
def test_lag_is_between_zero_and_what_the_log_holds(position, log, policy):
    lag = Lag.measure("g", {A: position}, {A: log}, policy)
    assert 0 <= lag.total <= log.end - log.start
    if position is not None and position >= log.end:
        assert lag.total == 0
