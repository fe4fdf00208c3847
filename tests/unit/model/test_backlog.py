from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.backlog import Backlog


def told(looks, refire_after=100):
    """The times at which a backlog is told, of looks [(time, whether records wait)]."""
    backlog, times = Backlog(), []
    for now, waiting in looks:
        backlog, news = backlog.seen(waiting, now, refire_after)
        backlog = Backlog.from_json(backlog.as_json())
        times += [now] * news
    return times


def test_a_backlog_is_told_when_it_begins_and_not_while_it_stays():
    assert told([(0, False), (10, True), (20, True), (30, True)]) == [10]


def test_each_crossing_is_told():
    assert told([(0, True), (10, False), (20, True), (30, False), (40, True)]) == [0, 20, 40]


def test_a_backlog_that_stays_is_told_again():
    assert told([(at, True) for at in range(0, 301, 50)]) == [0, 100, 200, 300]


def test_a_clock_that_was_set_back_does_not_silence_it():
    assert told([(1000, True), (10, True), (20, True)]) == [1000, 10]


@pytest.mark.parametrize("kept", [None, "x", [], {}, {"fired_at": "soon"}, {"fired_at": None}])
def test_what_is_not_a_backlog_is_nothing_known(kept):
    assert Backlog.from_json(kept) == Backlog()


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 10))
def test_it_is_told_at_every_crossing_and_never_more_often_than_asked(waiting, refire_after):
    times = told(list(enumerate(waiting)), refire_after)
    for at in times:
        assert waiting[at]
    crossings = [at for at, now in enumerate(waiting) if now and (at == 0 or not waiting[at - 1])]
    assert set(crossings) <= set(times)
    for first, second in itertools.pairwise(times):
        assert second - first >= refire_after or second in crossings
