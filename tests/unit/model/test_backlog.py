import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.backlog import Backlog

HERE = "here"


def reported(polls, refire_after=100):
    """The times at which a backlog is reported, of polls [(time, whether records wait, the position)]."""
    backlog, times = Backlog(), []
    for now, waiting, *position in polls:
        where = str(position[0]) if position else HERE
        backlog, news = backlog.after_poll(waiting, now, refire_after, position=where)
        times += [now] * news
    return times


def restarted(backlog):
    return Backlog.from_json(backlog.as_json())


def test_what_is_left_after_the_position_has_moved_is_reported_when_it_has_come_to_rest():
    assert reported([(0, True, 5), (10, True, 5), (20, True, 9), (30, True, 9), (40, True, 9)]) == [0, 30]


def test_a_clock_that_was_set_back_does_not_silence_it():
    assert reported([(1000, True), (10, True), (20, True)]) == [1000, 10]


def test_a_lost_position_counts_as_a_move():
    assert reported([(0, True, 5), (10, True, None), (20, True, None)]) == [0, 20]


def test_a_restart_costs_a_poll_and_reports_nothing_twice():
    backlog, _ = Backlog().after_poll(True, 0, 100, position="5")
    backlog, news = restarted(backlog).after_poll(True, 10, 100, position="5")
    assert not news
    backlog, news = restarted(backlog).after_poll(True, 20, 100, position="9")
    assert not news
    backlog, news = backlog.after_poll(True, 30, 100, position="9")
    assert news


@pytest.mark.parametrize("polls_a_run", [1, 3])
def test_twelve_bursts_that_are_each_left_waiting_are_each_reported(polls_a_run):
    """A run commits what there was when it began, and by then the next burst is there."""
    backlog, position, end, runs, at = Backlog(), 0, 50, 0, 0.0
    while runs < 12:
        at += 5
        assert at < 600, "the slow pace"
        backlog, news = backlog.after_poll(end - position >= 40, at, 600, position=str(position))
        if news:
            runs += 1
            for _ in range(polls_a_run):
                at += 5
                backlog, news = backlog.after_poll(end - position >= 40, at, 600, position=str(position))
                assert not news, "the run has not committed yet"
            position, end = end, end + 50
    assert runs == 12


@pytest.mark.parametrize(
    "kept", [None, "x", [], {}, {"fired_at": "soon"}, {"fired_at": None, "position": "p"}]
)
def test_what_is_not_a_backlog_is_nothing_known(kept):
    assert Backlog.from_json(kept) == Backlog()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60), st.integers(1, 10))
def test_it_is_reported_at_every_crossing_at_every_rest_elsewhere_and_never_more_often_than_asked(
    polls, refire_after
):
    times = reported([(at, waiting, where) for at, (waiting, where) in enumerate(polls)], refire_after)
    last = None
    for at, (waiting, where) in enumerate(polls):
        began = waiting and (at == 0 or not polls[at - 1][0])
        rests = waiting and not began and polls[at - 1][1] == where
        elsewhere = last is not None and where != polls[last][1]
        over = last is not None and at - last >= refire_after
        assert (at in times) == (began or (rests and elsewhere) or (waiting and over)), at
        if at in times:
            last = at
