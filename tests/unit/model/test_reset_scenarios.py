from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import (
    duration_text,
    exactly_one,
    is_nothing,
    parse_switch,
    parse_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.reset_scenarios import ByDuration, FromFile, ShiftBy, ToBatch, ToOffset
from airflow_kafka_offsets.model.reset_targets import (
    offsets_at_time,
    sources_at_batch,
    starting_points,
    targets_in_log,
)
from airflow_kafka_offsets.model.topics import TopicScope

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {A: LogRange(2, 9), B: LogRange(0, 0)}
SOURCES = st.dictionaries(
    st.sampled_from("012"),
    st.dictionaries(st.sampled_from([A, B, TopicPartition("u", 0)]), st.integers(0, 99)),
)
SCOPES = st.sampled_from([None, "t", "t:0", ["t:1", "u"]]).map(TopicScope.parse)


@pytest.mark.parametrize(
    ("scenario", "targets"),
    [
        (ToOffset.parse("earliest"), {A: 2, B: 0}),
        (ToOffset.parse("latest"), {A: 9, B: 0}),
        (ToOffset.parse("current"), {A: 5, B: 0}),
        (ToOffset.parse(7), {A: 7, B: 7}),
        (ToOffset.parse("7"), {A: 7, B: 7}),
        (ToOffset.parse({"t": {"0": 3, "1": 0}}), {A: 3, B: 0}),
        (ToOffset.parse('{"t": {"0": 3, "1": 0}}'), {A: 3, B: 0}),
        (ShiftBy.parse("+2"), {A: 7, B: 2}),
        (ShiftBy.parse(-6), {A: -1, B: -6}),
    ],
)
def test_where_a_scenario_leads(scenario, targets):
    assert targets_in_log(scenario, {A: 5, B: 0}, LOGS) == targets


@pytest.mark.parametrize("value", ["first", -1, "-1", True, 4.2, "", None, ["earliest"]])
def test_other_values_are_refused(value):
    with pytest.raises((UsageError, OffsetsFormatError), match="to_offset"):
        ToOffset.parse(value)


@pytest.mark.parametrize("value", ["", "x", "1.5", 1.5, True, None, "--1"])
def test_a_shift_is_a_whole_number(value):
    with pytest.raises(UsageError, match="shift_by"):
        ShiftBy.parse(value)


@pytest.mark.parametrize("value", [7, "7", " 7 "])
def test_a_batch_is_named_by_its_number(value):
    assert ToBatch.parse(value) == ToBatch(7)
    assert ToBatch.parse(value).as_json() == {"to_batch": 7}


@pytest.mark.parametrize("value", ["", "x", "-1", -1, 1.5, "1.5", True, None, 2**63, "9" * 19])
def test_another_batch_is_refused(value):
    with pytest.raises(UsageError, match="to_batch"):
        ToBatch.parse(value)


@given(SOURCES, SOURCES, SCOPES)
def test_each_partition_of_the_newest_batch_is_where_it_was_or_the_batch_is_refused(ends, newest, scope):
    added = {
        tp for s, offsets in newest.items() for tp in offsets if tp in scope and tp not in ends.get(s, {})
    }
    if added:
        with pytest.raises(PlanRefusedError) as refused:
            sources_at_batch(3, ends, newest, scope)
        assert f"has no offset of {summarize(added)}, " in str(refused.value)
        return
    found = sources_at_batch(3, ends, newest, scope)
    assert {source: set(offsets) for source, offsets in found.items()} == {
        s: set(o) for s, o in newest.items()
    }
    for source, offsets in found.items():
        for tp, offset in offsets.items():
            assert offset == (ends if tp in scope else newest)[source][tp]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("PT1H", 3600),
        ("P1DT2H30M", 95400),
        ("PT0.1S", 0.1),
        ("pt15m", 900),
        ("2h", 7200),
        ("10m", 600),
        ("30s", 30),
        ("7d", 604_800),
        ("1h30m", 5400),
        ("0.5s", 0.5),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_a_timedelta_or_text_of_two_forms(value, seconds):
    assert ByDuration.parse(value).duration.total_seconds() == seconds


@pytest.mark.parametrize(
    "value",
    [
        *("", "P", "PT", "PT1D", "P1M", "-PT1H", "P1DT", -60, timedelta(-1), None),
        # Neither months nor mega, no unit twice or out of order, and nothing between.
        *("1H", "10M", "-2h", "30m1h", "1h1h", "1 h", "1h 30m", "1w", "10ms", "1.5h", "h", "2h30"),
    ],
)
def test_other_durations_are_refused(value):
    with pytest.raises(UsageError, match="by_duration"):
        ByDuration.parse(value)


@given(st.tuples(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)).filter(any))
def test_both_forms_of_a_duration_mean_the_same(amounts):
    days, hours, minutes, seconds = amounts
    meant = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    short = "".join(f"{amount}{unit}" for amount, unit in zip(amounts, "dhms", strict=True) if amount)
    assert ByDuration.parse(short).duration == meant
    assert ByDuration.parse(f"P{days}DT{hours}H{minutes}M{seconds}S").duration == meant


@pytest.mark.parametrize(
    ("policy", "starts"), [("earliest", {A: 2, B: 1}), ("latest", {A: 9, B: 1}), ("skip", {B: 1})]
)
def test_a_partition_without_a_commit_stands_where_the_policy_says(policy, starts):
    assert starting_points({A: None, B: 1}, LOGS, policy) == starts


def test_without_a_policy_a_missing_commit_is_refused():
    with pytest.raises(PlanRefusedError, match="t-1 has no committed offset"):
        starting_points({A: 5, B: None}, LOGS, "fail")


def test_only_scenarios_that_move_on_when_applied_again_are_relative():
    relative = [ShiftBy(1), ByDuration(timedelta(1)), ToOffset("latest")]
    absolute = [ToOffset(5), ToOffset("earliest"), ToOffset("current"), ToOffset({A: 1}), FromFile("f", "")]
    absolute += [ToBatch(5)]
    assert [scenario.relative for scenario in relative + absolute] == [True] * 3 + [False] * 6


def test_a_file_for_one_group_is_not_taken_for_several():
    assert FromFile("f", "t,0,3\n").offsets("g", 1) == {A: 3}
    assert FromFile("f", "g,t,0,3\nh,t,0,4\n").offsets("h", 2) == {A: 4}
    with pytest.raises(OffsetsFormatError, match="2 groups are moved"):
        FromFile("f", "t,0,3\n").offsets("g", 2)


@pytest.mark.parametrize("text", ["", "t,0,three\n", "h,t,0,4\n"])
def test_a_file_that_does_not_fit_is_named(text):
    with pytest.raises(OffsetsFormatError, match="^s3://lake/before.csv: "):
        FromFile("s3://lake/before.csv", text).offsets("g", 1)


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


@pytest.mark.parametrize("value", ["0", "no", "yes", "", 1, None])
def test_a_switch_is_true_or_false_and_nothing_else(value):
    assert (parse_switch(" True", "allow_rewind"), parse_switch(False, "allow_rewind")) == (True, False)
    with pytest.raises(UsageError, match="expected true or false"):
        parse_switch(value, "allow_rewind")


@pytest.mark.parametrize("value", [None, "", " ", "None", "null", '"null"'])
def test_what_a_template_gives_that_finds_nothing_is_nothing(value):
    assert is_nothing(value)
    assert not is_nothing("none of them")


def test_exactly_one_scenario_is_wanted_and_empty_is_none():
    assert exactly_one({"to_offset": "", "to_datetime": "2026-03-01"}) == ("to_datetime", "2026-03-01")
    assert exactly_one({"to_offset": 0, "to_datetime": None}) == ("to_offset", 0)
    with pytest.raises(UsageError, match="none of them"):
        exactly_one({"to_offset": "", "to_datetime": None})
    with pytest.raises(UsageError, match="exactly one of to_offset, to_datetime"):
        exactly_one({"to_offset": 0, "to_datetime": "2026-03-01"})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (42, "42 s"),
        (59.6, "1 min"),
        (123, "2 min 3 s"),
        (3_600, "1 h"),
        (3_900, "1 h 5 min"),
        (86_400, "1 d"),
        (1_797_971, "20 d 19 h"),
    ],
)
def test_a_duration_reads_in_its_two_largest_units(seconds, text):
    assert duration_text(seconds) == text
