import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, WindowMismatchError
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import LogRange, OffsetRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.window import OffsetWindow, check_bounds

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("orders", 2)
WINDOW = OffsetWindow({A: OffsetRange(5, 8), B: OffsetRange(0, 4), C: OffsetRange(7, 7)}, frozenset({B}))

ranges = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 40)),
    st.builds(
        lambda start, count: OffsetRange(start, start + count), st.integers(0, 10**12), st.integers(0, 10**9)
    ),
    min_size=1,
)


@st.composite
def windows(draw):
    drawn = draw(ranges)
    return OffsetWindow(
        drawn, frozenset(draw(st.sets(st.sampled_from(sorted(drawn))))), {"start": "committed"}
    )


@given(windows())
def test_a_window_comes_back_from_its_json(window):
    assert OffsetWindow.parse(json.loads(json.dumps(window.as_json()))) == window
    assert OffsetWindow.parse(json.dumps(window.as_json())) == window
    assert OffsetWindow.parse(window.as_text()) == window


@given(windows(), st.integers(1, 10**10))
def test_a_limited_window_starts_where_the_whole_one_does_and_is_as_large_as_it_may_be(window, limit):
    limited = window.limited(limit)
    assert limited.start == window.start
    assert limited.records == min(limit, window.records)
    for tp, whole in window.ranges.items():
        assert 0 <= limited.ranges[tp].size <= whole.size
        if window.records:
            share = whole.size * min(limit, window.records) / window.records
            assert abs(limited.ranges[tp].size - share) <= 1


@given(windows())
def test_committing_it_twice_is_committing_it_once(window):
    held = dict(window.committed)
    held |= window.to_commit("group 'g'", as_commits(held))
    assert window.to_commit("group 'g'", as_commits(held)) == {}
    assert held == {
        tp: window.end[tp] if window.ranges[tp].size or tp in window.without_commit else window.start[tp]
        for tp in held
    }


def test_a_half_written_commit_is_finished():
    assert WINDOW.to_commit("group 'g'", as_commits({A: 8, B: None, C: 7})) == {B: 4}


@pytest.mark.parametrize(
    "held",
    [
        {A: 6, B: None, C: 7},
        {A: None, B: None, C: 7},
        {A: 5, B: 0, C: 7},
        {A: 9, B: None, C: 7},
        {A: 5, B: None, C: None},
    ],
    ids=["between", "commit lost", "commit made since", "beyond", "lost on an empty range"],
)
def test_a_group_that_stands_elsewhere_is_refused(held):
    with pytest.raises(WindowMismatchError, match="group 'g' is neither at the start nor at the end"):
        WINDOW.to_commit("group 'g'", as_commits(held))


def test_the_error_names_each_partition_with_what_was_found_and_expected():
    with pytest.raises(WindowMismatchError) as refused:
        WINDOW.to_commit("group 'g'", as_commits({A: 6, B: 1, C: 7}))
    assert "orders-0: found 6, the range goes from 5 to 8" in str(refused.value)
    assert "orders-1: found 1, the range goes from nothing to 4" in str(refused.value)
    assert "orders-2" not in str(refused.value)


def test_spark_reads_it_by_assignment():
    assert WINDOW.spark_options() == {
        "assign": '{"orders":[0,1,2]}',
        "startingOffsets": '{"orders":{"0":5,"1":0,"2":7}}',
        "endingOffsets": '{"orders":{"0":8,"1":4,"2":7}}',
    }


def test_records_that_retention_took_are_counted():
    logs = {A: LogRange(7, 20), B: LogRange(9, 20), C: LogRange(9, 20)}
    (refusal,) = WINDOW.refusals(logs)
    assert refusal.startswith("retention has deleted 6 records of the window on orders-0, orders-1 (")


def test_an_end_beyond_the_log_is_refused():
    (refusal,) = WINDOW.refusals({A: LogRange(0, 6), B: LogRange(0, 4), C: LogRange(0, 7)})
    assert refusal.startswith(
        "the window ends beyond the log on orders-0 (orders-0: the window ends at 8, the log at 6)"
    )


def test_a_window_in_its_log_is_not_refused():
    assert WINDOW.refusals({A: LogRange(5, 8), B: LogRange(0, 4), C: LogRange(7, 7)}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "expected a window of version 1"),
        ({"end": {"orders": {"0": 8}}}, "orders-1, orders-2 is not in all of start, end and committed"),
        ({"committed": {"orders": {"0": 5, "1": 4}}}, "orders-2 is not in all of start, end and committed"),
        ({"end": {"orders": {"0": 4, "1": 4, "2": 7}}}, "found start 5, end 4 and committed 5 of orders-0"),
        ({"committed": {"orders": {"0": 6, "1": 4, "2": 7}}}, "and committed 6 of orders-0"),
        ({"start": None}, "window, start: found None"),
        ({"source": "plan"}, "expected the window's source"),
    ],
)
def test_json_that_is_no_window_is_refused(change, said):
    with pytest.raises(OffsetsFormatError, match=said):
        OffsetWindow.parse({**WINDOW.as_json(), **change})


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ({"logs": {"cluster": "c", "topics": {"orders": "a", "other": "b"}}}, LogIds("c", {"orders": "a"})),
        ({"logs": {"topics": {"orders": "a+/"}}}, LogIds("", {"orders": "a-_"})),
        ({}, UNKNOWN_LOGS),
    ],
)
def test_a_window_names_its_logs_as_far_as_they_are_recorded(source, ids):
    window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(0, 5)}, source=source)
    assert OffsetWindow.parse(window.as_text()).log_ids == ids


def test_a_group_has_passed_a_window_at_its_end():
    assert WINDOW.passed({A: 8, B: 4, C: 9})
    assert not WINDOW.passed({A: 8, B: 3, C: 7})
    assert not WINDOW.passed({A: 8, B: None, C: 7})


# --- its bounds

NOW = datetime(2026, 3, 2, tzinfo=timezone.utc)
EARLIER, LATER = NOW - timedelta(days=2), NOW - timedelta(days=1)
EARLIEST, LATEST = Place("earliest"), Place("latest")


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (
            Place("time", EARLIER),
            Place("time", EARLIER),
            "a window without length: in Airflow 3 a plain cron string",
        ),
        (Place("time", LATER), Place("time", EARLIER), "is after end"),
        (EARLIEST, Place("time", NOW + timedelta(seconds=1)), "end=.* is in the future"),
        (Place("time", NOW + timedelta(days=1)), LATEST, "start=.* is in the future"),
        (
            Place("offsets", {TopicPartition("orders", 0): 1}),
            Place("offsets", {TopicPartition("orders", 1): 1}),
            "orders-0, orders-1 is only in one of the two",
        ),
    ],
)
def test_bounds_that_make_no_window_are_refused(start, end, said):
    with pytest.raises(PlanRefusedError, match=said) as refused:
        check_bounds(start, end, NOW)
    assert len(refused.value.refusals) == 1


def test_a_time_in_one_zone_may_equal_one_in_another():
    there = timezone(timedelta(hours=5))
    with pytest.raises(PlanRefusedError, match="without length"):
        check_bounds(Place("time", EARLIER), Place("time", EARLIER.astimezone(there)), NOW)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (EARLIEST, LATEST),
        (Place("time", EARLIER), Place("time", LATER)),
        (Place("time", EARLIER), Place("time", NOW)),
    ],
)
def test_bounds_of_a_window_pass(start, end):
    check_bounds(start, end, NOW)
