from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.window_bounds import WindowBound, check_bounds

NOW = datetime(2026, 3, 2, tzinfo=timezone.utc)
A, B = NOW - timedelta(days=2), NOW - timedelta(days=1)
EARLIEST, LATEST = WindowBound("earliest"), WindowBound("latest")


@pytest.mark.parametrize("place", ["committed", "earliest"])
def test_a_start_may_be_a_place(place):
    assert WindowBound.start(f" {place} ") == WindowBound(place)
    assert not WindowBound.start(place).lasting


def test_an_end_may_be_the_end_of_the_log():
    assert WindowBound.end("latest") == LATEST
    assert str(LATEST) == "latest"


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)))
def test_a_time_is_read_from_text_and_says_the_same_records_again(moment):
    for bound in (WindowBound.start(moment), WindowBound.end(moment.isoformat())):
        assert bound.moment == moment
        assert bound.lasting
        assert str(bound) == bound.as_text() == moment.isoformat()


def test_offsets_are_read_from_a_mapping_or_from_text():
    bound = WindowBound.start({"orders": {"0": 4}})
    assert bound.offsets == {TopicPartition("orders", 0): 4}
    assert WindowBound.end('{"orders":{"0":4}}') == bound
    assert bound.lasting
    assert (str(bound), bound.as_text()) == ("offsets", '{"orders":{"0":4}}')


@pytest.mark.parametrize("value", ["latest", "yesterday", 7, True, ["earliest"]])
def test_what_is_no_start_is_refused(value):
    with pytest.raises(UsageError, match="expected 'committed', 'earliest', a time such as"):
        WindowBound.start(value)


@pytest.mark.parametrize("value", ["committed", "earliest", 7])
def test_what_is_no_end_is_refused(value):
    with pytest.raises(UsageError, match="expected 'latest', a time such as"):
        WindowBound.end(value)


@pytest.mark.parametrize("value", [None, "", " ", "None"])
def test_nothing_is_no_end(value):
    with pytest.raises(UsageError, match="end=.*: expected 'latest', a time such as"):
        WindowBound.end(value)


def test_offsets_have_to_be_offsets():
    with pytest.raises(OffsetsFormatError, match="start: found"):
        WindowBound.start({"orders": {"0": -1}})


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (WindowBound(A), WindowBound(A), "a window without length: in Airflow 3 a plain cron string"),
        (WindowBound(B), WindowBound(A), "is after end"),
        (EARLIEST, WindowBound(NOW + timedelta(seconds=1)), "end=.* is in the future"),
        (WindowBound(NOW + timedelta(days=1)), LATEST, "start=.* is in the future"),
        (
            WindowBound({TopicPartition("orders", 0): 1}),
            WindowBound({TopicPartition("orders", 1): 1}),
            "orders-0, orders-1 is in one of them only",
        ),
    ],
)
def test_bounds_that_make_no_window_are_refused(start, end, said):
    with pytest.raises(PlanRefusedError, match=said):
        check_bounds(start, end, NOW)


def test_a_time_in_one_zone_may_equal_one_in_another():
    there = timezone(timedelta(hours=5))
    with pytest.raises(PlanRefusedError, match="without length"):
        check_bounds(WindowBound(A), WindowBound(A.astimezone(there)), NOW)


@pytest.mark.parametrize(
    ("start", "end"),
    [(EARLIEST, LATEST), (WindowBound(A), WindowBound(B)), (WindowBound(A), WindowBound(NOW))],
)
def test_bounds_of_a_window_pass(start, end):
    check_bounds(start, end, NOW)
