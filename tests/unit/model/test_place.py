from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.formats import OffsetsFile
from airflow_kafka_offsets.model.interval import IntervalSchedule
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, offsets_at_time, starting_points
from airflow_kafka_offsets.model.parameters import (
    duration_text,
    exactly_one,
    is_blank,
    parse_switch,
    parse_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.place import RESETS, Place
from airflow_kafka_offsets.model.topics import TopicScope

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {A: LogRange(2, 9), B: LogRange(0, 0)}


@pytest.mark.parametrize(
    ("parameter", "value", "offsets"),
    [
        ("to_offset", "earliest", {A: 2, B: 0}),
        ("to_offset", "latest", {A: 9, B: 0}),
        ("to_offset", " committed ", {A: 5, B: 0}),
        ("to_offset", 7, {A: 7, B: 7}),
        ("to_offset", "7", {A: 7, B: 7}),
        ("to_offset", {"t": {"0": 3, "1": 0}}, {A: 3, B: 0}),
        ("to_offset", '{"t": {"0": 3, "1": 0}}', {A: 3, B: 0}),
        ("shift_by", "+2", {A: 7, B: 2}),
        ("shift_by", -6, {A: -1, B: -6}),
        ("start", "committed", {A: 5, B: 0}),
        ("end", "latest", {A: 9, B: 0}),
    ],
)
def test_where_a_place_is_in_the_logs(parameter, value, offsets):
    assert Place.parse(value, parameter).offsets_in_logs({A: 5, B: 0}, LOGS) == offsets


@pytest.mark.parametrize("value", [7, "7", " 7 "])
def test_a_batch_is_named_by_its_number(value):
    place = Place.parse(value, "to_batch")
    assert (place, place.batch_id, place.group_id) == (Place("batch", 7), 7, None)


def test_a_group_is_named_without_the_space_around_it():
    place = Place.parse(" orders-blue", "to_group")
    assert (place.group_id, place.batch_id) == ("orders-blue", None)


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
    assert Place.parse(value, "by_duration") == Place("ago", timedelta(seconds=seconds))


REFUSED: dict[str, list[Any]] = {
    "shift_by": ["", "x", "1.5", 1.5, True, None, "--1"],
    "to_batch": ["", "x", "-1", -1, 1.5, "1.5", True, None, 2**63, "9" * 19],
    "by_duration": [
        *("", "P", "PT", "PT1D", "P1M", "-PT1H", "P1DT", -60, timedelta(-1), None),
        # Neither months nor mega, no unit twice or out of order, and nothing between.
        *("1H", "10M", "-2h", "30m1h", "1h1h", "1 h", "1h 30m", "1w", "10ms", "1.5h", "h", "2h30"),
    ],
    "to_datetime": [
        *("yesterday", "", None, 1234567890, "2026-13-01", "9" * 5_000, "\ud800", "0000-01-01"),
        *("1795010112345", "1795010112345.5", "1795010112345Z"),
    ],
}


@pytest.mark.parametrize(("parameter", "value"), [(each, it) for each, its in REFUSED.items() for it in its])
def test_what_is_no_whole_number_batch_duration_or_time_is_refused(parameter, value):
    with pytest.raises(UsageError, match=parameter):
        Place.parse(value, parameter)


@given(st.tuples(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)).filter(any))
def test_both_forms_of_a_duration_mean_the_same(amounts):
    days, hours, minutes, seconds = amounts
    meant = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    short = "".join(f"{amount}{unit}" for amount, unit in zip(amounts, "dhms", strict=True) if amount)
    assert Place.parse(short, "by_duration").value == meant
    assert Place.parse(f"P{days}DT{hours}H{minutes}M{seconds}S", "by_duration").value == meant


@pytest.mark.parametrize(
    ("policy", "starts"), [("earliest", {A: 2, B: 1}), ("latest", {A: 9, B: 1}), ("skip", {B: 1})]
)
def test_a_partition_without_a_commit_stands_where_the_policy_says(policy, starts):
    assert starting_points({A: None, B: 1}, LOGS, policy) == starts


def test_a_partition_that_was_added_to_a_known_topic_starts_at_0_although_its_log_does_not():
    assert starting_points({A: None, B: 1}, LOGS, "latest", {"t"}) == {A: 0, B: 1}


NOW = datetime(2026, 3, 2, tzinfo=timezone.utc)
FIRST = {"t": {"0": 1}}
FACTS = [
    ("to_offset", 5, {"to_offset": 5}, ""),
    ("to_offset", "earliest", {"to_offset": "earliest"}, ""),
    ("to_offset", "latest", {"to_offset": "latest"}, "relative"),
    ("to_offset", "committed", {"to_offset": "committed"}, "starts_from_commits"),
    ("to_offset", FIRST, {"to_offset": "offsets"}, "reproducible names_partitions"),
    ("to_datetime", NOW, {"to_datetime": "2026-03-02T00:00:00+00:00"}, "reproducible"),
    ("shift_by", "-3", {"shift_by": -3}, "relative starts_from_commits"),
    ("by_duration", "1h30m", {"by_duration": "PT5400S"}, "relative"),
    ("to_batch", 5, {"to_batch": 5}, ""),
    ("to_group", " orders-blue", {"to_group": "orders-blue"}, "relative names_partitions"),
    ("from_file", "s3://lake/f.csv", {"from_file": "s3://lake/f.csv"}, "names_partitions"),
]


@pytest.mark.parametrize(("parameter", "value", "source", "facts"), FACTS)
def test_what_is_known_of_a_place(parameter, value, source, facts):
    place = Place.parse(value, parameter)
    assert place.as_json() == source
    known = ("relative", "starts_from_commits", "reproducible", "names_partitions")
    assert [name for name in known if getattr(place.traits, name)] == sorted(facts.split(), key=known.index)
    asked = [place.traits.uses_on_no_commit(with_checkpoint=given) for given in (False, True)]
    may_be = [RESETS[parameter].may_use_on_no_commit(with_checkpoint=given) for given in (False, True)]
    assert asked == [place.traits.starts_from_commits or parameter == "to_group", parameter == "to_group"]
    assert all(may for may, asks in zip(may_be, asked, strict=True) if asks)


def test_each_way_of_a_reset_is_known():
    assert {parameter for parameter, *_ in FACTS} == RESETS.keys()


def test_a_duration_ago_is_a_time():
    assert Place("ago", timedelta(days=1)).with_duration_resolved(NOW) == Place(
        "time", NOW - timedelta(days=1)
    )
    assert Place("latest").with_duration_resolved(NOW) == Place("latest")


def test_a_file_for_one_group_is_not_taken_for_several():
    assert OffsetsFile("f", "t,0,3\n").group_offsets("g", 1) == {A: 3}
    assert OffsetsFile("f", "g,t,0,3\nh,t,0,4\n").group_offsets("h", 2) == {A: 4}
    with pytest.raises(OffsetsFormatError, match="2 groups are moved"):
        OffsetsFile("f", "t,0,3\n").group_offsets("g", 2)


@pytest.mark.parametrize("text", ["", "t,0,three\n", "h,t,0,4\n"])
def test_a_file_that_does_not_fit_is_named(text):
    with pytest.raises(OffsetsFormatError, match="^s3://lake/before.csv: "):
        OffsetsFile("s3://lake/before.csv", text).group_offsets("g", 1)


def test_a_partition_with_nothing_that_new_is_at_its_log_end():
    assert offsets_at_time({A: None, B: None}, LOGS) == {A: 9, B: 0}
    assert offsets_at_time({A: 4}, LOGS) == {A: 4}


@pytest.mark.parametrize(
    "text", ["2026-03-01T00:00:00Z", "2026-03-01T00:00:00", "2026-03-01", "2026-03-01T01:00:00+01:00"]
)
def test_times_are_iso_8601_and_utc_where_no_zone_is_given(text):
    assert parse_time(text, "to_datetime") == datetime(2026, 3, 1, tzinfo=timezone.utc)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(3000, 1, 1)))
def test_a_timestamp_is_exact_to_the_millisecond(moment):
    aware = moment.replace(tzinfo=timezone.utc)
    back = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=timestamp_ms(aware))
    assert timedelta(0) <= aware - back < timedelta(milliseconds=1)


def test_pendulums_times_and_durations_count_like_those_of_python():
    # Pendulum's cannot be divided by a timedelta.
    moment = parse_time(pendulum.datetime(2026, 10, 25, 2, 30, tz="Europe/Berlin", fold=1), "to_datetime")
    assert (type(moment), timestamp_ms(moment)) == (datetime, 1_792_891_800_000)
    schedule = IntervalSchedule.parse(pendulum.duration(minutes=90))
    assert schedule.containing(moment).start == datetime(2026, 10, 25, 1, 30, tzinfo=timezone.utc)


@pytest.mark.parametrize("value", ["0", "no", "yes", "", 1, None])
def test_a_switch_is_true_or_false_and_nothing_else(value):
    assert (parse_switch(" True", "allow_rewind"), parse_switch(False, "allow_rewind")) == (True, False)
    with pytest.raises(UsageError, match="expected true or false"):
        parse_switch(value, "allow_rewind")


@pytest.mark.parametrize("value", [None, "", " ", "None", "null", '"null"'])
def test_what_a_template_gives_that_finds_nothing_is_nothing(value):
    assert is_blank(value)
    assert not is_blank("none of them")


def test_exactly_one_scenario_is_wanted_and_empty_is_none():
    assert exactly_one({"to_offset": "", "to_datetime": "2026-03-01"}) == ("to_datetime", "2026-03-01")
    assert exactly_one({"to_offset": 0, "to_datetime": None}) == ("to_offset", 0)
    with pytest.raises(UsageError, match="found no value in to_offset=''; expected"):
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


@pytest.mark.parametrize("parameter", ["start", "end", "target"])
@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)))
def test_a_time_is_read_from_text_and_says_the_same_records_again(parameter, moment):
    for place in (Place.parse(moment, parameter), Place.parse(moment.isoformat(), parameter)):
        assert (place.time, place.traits.reproducible) == (moment, True)
        assert str(place) == place.as_text() == moment.isoformat()


def test_offsets_are_read_from_a_mapping_or_from_text():
    place = Place.parse({"orders": {"0": 4}}, "start")
    assert place.offsets == {TopicPartition("orders", 0): 4}
    assert Place.parse('{"orders":{"0":4}}', "end") == place
    assert (str(place), place.as_text()) == ("offsets", '{"orders":{"0":4}}')


EXPECTED = {
    "start": "expected 'committed', 'earliest', a time such as .*, or offsets as",
    "end": "expected 'latest', a time such as .*, or offsets as",
    "target": "expected 'latest', a time such as .*, or offsets as",
    "to_offset": "expected a whole number from 0, 'earliest', 'latest', 'committed', or offsets as",
}


@pytest.mark.parametrize(
    "place", [Place("time", datetime(2026, 3, 1, tzinfo=timezone.utc)), Place("group", "orders-blue")]
)
def test_a_place_that_was_not_resolved_has_no_offset(place):
    with pytest.raises(UsageError, match=f"^{place.kind} .* is not resolved to offsets yet"):
        place.offsets_in_logs({A: 5}, LOGS)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *product(EXPECTED, ["yesterday", True, ["earliest"], None, "", "None", -1, "-1", 4.2, "current"]),
        *(("start", "latest"), ("end", "committed"), ("end", "earliest"), ("target", "earliest")),
    ],
)
def test_other_values_are_refused_with_what_is_expected(parameter, value):
    with pytest.raises(UsageError, match=f"^{parameter}=.*: {EXPECTED[parameter]}"):
        Place.parse(value, parameter)


def test_offsets_that_topics_leaves_out_are_refused_or_those_of_other_groups():
    place = Place.parse({"t": {"0": 3, "1": 4}}, "to_offset")
    first, second = TopicScope.parse("t:0"), TopicScope.parse("t:1")
    with pytest.raises(OffsetsFormatError, match="the offsets name t-1, but topics and group_id leave them"):
        place.offsets_for_group("g", first, 1)
    assert place.offsets_for_group("g", first, 2) == {A: 3}
    place.refuse_unused_offsets([first, second])
    with pytest.raises(OffsetsFormatError, match="the offsets name t-1"):
        place.refuse_unused_offsets([first, first])
    assert Place("latest").offsets_for_group("g", first, 1) is None
