from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.scenarios import (
    ToOffset,
    exactly_one,
    offsets_at_time,
    parse_time,
    timestamp_ms,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {A: LogRange(2, 9), B: LogRange(0, 0)}


@pytest.mark.parametrize(
    ("value", "targets"),
    [
        ("earliest", {A: 2, B: 0}),
        ("latest", {A: 9, B: 0}),
        ("current", {A: 5, B: 0}),
        (7, {A: 7, B: 7}),
        ("7", {A: 7, B: 7}),
        ({"t": {"0": 3, "1": 0}}, {A: 3, B: 0}),
        ('{"t": {"0": 3, "1": 0}}', {A: 3, B: 0}),
    ],
)
def test_where_to_offset_leads(value, targets):
    assert ToOffset.parse(value).targets([A, B], {A: 5, B: 0}, LOGS) == targets


@pytest.mark.parametrize("value", ["first", -1, "-1", True, 4.2, "", None, ["earliest"]])
def test_other_values_are_refused(value):
    with pytest.raises((UsageError, OffsetsFormatError), match="to_offset"):
        ToOffset.parse(value)


def test_current_needs_a_commit():
    with pytest.raises(PlanRefusedError, match="t-1 has no committed offset"):
        ToOffset.parse("current").targets([A, B], {A: 5, B: None}, LOGS)


def test_a_partition_with_nothing_that_new_is_at_its_log_end():
    assert offsets_at_time({A: None, B: None}, LOGS) == {A: 9, B: 0}
    assert offsets_at_time({A: 4}, LOGS) == {A: 4}


@pytest.mark.parametrize(
    "text", ["2026-03-01T00:00:00Z", "2026-03-01T00:00:00", "2026-03-01", "2026-03-01T01:00:00+01:00"]
)
def test_times_are_iso_8601_and_utc_where_no_zone_is_given(text):
    assert parse_time(text, "to_datetime") == datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("value", ["yesterday", "", None, 1234567890, "2026-13-01"])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(UsageError, match="to_datetime"):
        parse_time(value, "to_datetime")


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(3000, 1, 1)))
def test_a_timestamp_is_exact_to_the_millisecond(moment):
    aware = moment.replace(tzinfo=timezone.utc)
    back = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=timestamp_ms(aware))
    assert timedelta(0) <= aware - back < timedelta(milliseconds=1)


def test_exactly_one_scenario_is_wanted_and_empty_is_none():
    assert exactly_one({"to_offset": "", "to_datetime": "2026-03-01"}) == ("to_datetime", "2026-03-01")
    assert exactly_one({"to_offset": 0, "to_datetime": None}) == ("to_offset", 0)
    with pytest.raises(UsageError, match="none of them"):
        exactly_one({"to_offset": "", "to_datetime": None})
    with pytest.raises(UsageError, match="exactly one of to_offset, to_datetime"):
        exactly_one({"to_offset": 0, "to_datetime": "2026-03-01"})
