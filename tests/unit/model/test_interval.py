"""Intervals follow one another without a gap, each under a key of its own, whatever the clocks do."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.interval import KEY_FORMAT, IntervalSchedule

UTC = timezone.utc
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "America/Sao_Paulo",  # whose midnight was skipped once a year
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",  # back in spring
    "Pacific/Apia",  # which has skipped a day
]
CLOCK = ["hour", "day", "0 6 * * *", "30 2 * * *", "*/30 * * * *", "0 */6 * * *", "0 0 * * 1", "15 3 1 * *"]

schedules = st.one_of(
    st.builds(IntervalSchedule.parse, st.sampled_from(CLOCK), st.sampled_from(ZONES)),
    st.integers(1, 10 * 86_400).map(lambda seconds: IntervalSchedule.parse(timedelta(seconds=seconds))),
)
moments = st.datetimes(datetime(2009, 1, 1), datetime(2039, 1, 1), timezones=st.just(UTC))


def near_changes():
    """Moments around the changes of clocks, which random ones seldom meet."""
    changes = [
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
        datetime(2026, 3, 8, 7, tzinfo=UTC),
        datetime(2026, 11, 1, 6, tzinfo=UTC),
        datetime(2018, 11, 4, 3, tzinfo=UTC),
        datetime(2018, 2, 18, 2, tzinfo=UTC),
        datetime(2026, 4, 4, 15, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
        datetime(2011, 12, 30, 10, tzinfo=UTC),
        datetime(2026, 2, 15, 2, tzinfo=UTC),
    ]
    return st.builds(
        lambda change, minutes: change + timedelta(minutes=minutes),
        st.sampled_from(changes),
        st.integers(-3_000, 3_000),
    )


@given(schedules, st.one_of(moments, near_changes()))
def test_intervals_follow_one_another_and_each_has_its_own_key(schedule, moment):
    found = list(islice(schedule.since(moment), 60))
    assert found[0].start >= moment
    assert all(each.start < each.end for each in found)
    assert all(one.end == other.start for one, other in pairwise(found))
    assert len({each.key for each in found}) == len(found)
    assert all(one.key < other.key for one, other in pairwise(found))


@given(schedules, st.one_of(moments, near_changes()))
def test_each_moment_is_in_the_interval_that_its_key_leads_back_to(schedule, moment):
    found = schedule.containing(moment)
    assert found.start <= moment < found.end
    assert schedule.of_key(found.key) == found
    assert next(schedule.since(found.start)) == found
    assert next(schedule.since(found.start + timedelta(microseconds=1))).start == found.end


def lengths(every, zone, year, month, day):
    schedule = IntervalSchedule.parse(every, zone)
    start = datetime(year, month, day, tzinfo=schedule._tz).astimezone(UTC)
    end = datetime(year, month, day + 1, tzinfo=schedule._tz).astimezone(UTC)
    found = takewhile(lambda each: each.end <= end, schedule.since(start))
    return {each.key[11:16]: each.end - each.start for each in found}


def test_a_day_has_the_hours_that_its_clock_shows():
    hour = timedelta(hours=1)
    assert lengths("day", "Europe/Berlin", 2026, 3, 29) == {"00:00": 23 * hour}
    assert lengths("day", "Europe/Berlin", 2026, 10, 25) == {"00:00": 25 * hour}
    spring, autumn = (lengths("hour", "Europe/Berlin", 2026, *day) for day in ((3, 29), (10, 25)))
    assert len(spring) == 23
    assert "02:00" not in spring
    assert len(autumn) == 24
    assert {key: length for key, length in autumn.items() if length != hour} == {"02:00": 2 * hour}


def test_a_time_that_the_clock_skips_is_the_moment_of_the_change():
    assert lengths("day", "America/Sao_Paulo", 2018, 11, 4) == {"00:00": timedelta(hours=23)}
    schedule = IntervalSchedule.parse("30 2 * * *", "Europe/Berlin")
    found = next(schedule.since(datetime(2026, 3, 29, tzinfo=UTC)))
    assert found.start == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)  # 03:30


def test_a_key_is_in_the_default_form_of_airflows_mappers_and_theirs_lead_back():
    mappers = pytest.importorskip("airflow.sdk.definitions.partition_mappers.temporal")
    temporal = pytest.importorskip("airflow.partition_mappers.temporal")
    assert mappers.StartOfHourMapper().input_format == KEY_FORMAT
    zone = "Europe/Berlin"
    hour = IntervalSchedule.parse("hour", zone).containing(datetime(2026, 7, 1, 12, 30, tzinfo=UTC))
    assert hour.key == "2026-07-01T14:00:00"
    to_hour = temporal.StartOfHourMapper(timezone=zone)
    to_day = temporal.StartOfDayMapper(timezone=zone)
    assert IntervalSchedule.parse("hour", zone).of_key(to_hour.to_downstream(hour.key)) == hour
    day = IntervalSchedule.parse("day", zone).of_key(to_day.to_downstream(hour.key))
    assert day.start == datetime(2026, 6, 30, 22, tzinfo=UTC)
    if hasattr(to_day, "to_partition_date"):  # since Airflow 3.3
        assert to_day.to_partition_date("2026-07-01") == day.start


def test_a_length_is_counted_from_1970_and_by_no_clock():
    schedule = IntervalSchedule.parse("PT15M")
    found = schedule.containing(datetime(2026, 3, 1, 14, 20, tzinfo=UTC))
    assert found.as_json() == {
        "key": "2026-03-01T14:15:00",
        "start": "2026-03-01T14:15:00+00:00",
        "end": "2026-03-01T14:30:00+00:00",
    }
    assert IntervalSchedule.parse("15m") == IntervalSchedule.parse(timedelta(minutes=15)) == schedule
    with pytest.raises(UsageError, match="timezone='Europe/Berlin' has no effect"):
        IntervalSchedule.parse("15m", "Europe/Berlin")


def test_the_same_intervals_are_told_whatever_they_are_called():
    names = ["hour", " hour ", "@hourly", "0 * * * *", "0  *  * * *"]
    assert {IntervalSchedule.parse(name).canonical for name in names} == {"0 * * * * UTC"}
    assert IntervalSchedule.parse("day").canonical != IntervalSchedule.parse("day", "Europe/Berlin").canonical


@pytest.mark.parametrize(
    ("every", "zone", "found"),
    [
        ("hours", "UTC", "every='hours': expected 'hour'"),
        ("", "UTC", "every=''"),
        (None, "UTC", "every=None"),
        (3600, "UTC", "every=3600"),
        (timedelta(0), "UTC", "expected 'hour'"),
        (timedelta(milliseconds=1500), "UTC", "in whole seconds"),
        ("P400D", "UTC", "every='P400D'"),
        ("* * * *", "UTC", "found 4 fields"),
        ("* * * * * *", "UTC", "found 6 fields"),
        ("61 * * * *", "UTC", "out of range"),
        ("0 0 31 2 *", "UTC", "failed to find next date"),
        ("0 0 29 2 *", "UTC", "more than 366 days"),
        ("R * * * *", "UTC", "a random number"),
        ("0 h(1-3) * * *", "UTC", "a random number"),
        ("day", "Europe/Berln", "timezone='Europe/Berln': expected the name of a time zone"),
        ("day", "../etc/passwd", "expected the name of a time zone"),
        ("day", "Europe", "expected the name of a time zone"),
        ("day", 1, "timezone: found int; expected text"),
        ("day", "", "timezone='' is empty"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(every, zone, found):
    with pytest.raises(UsageError) as refused:
        IntervalSchedule.parse(every, zone)
    assert found in str(refused.value)


@pytest.mark.parametrize(
    "key",
    [
        "2026-03-01T14:30:00",
        "2026-03-01 14:00:00",
        "2026-W09",
        "2026-03",
        "14:00",
        "2026-03-29T02:00:00",
        "x",
    ],
)
def test_a_key_that_starts_no_interval_is_refused(key):
    with pytest.raises(UsageError, match="is not the start of an interval of every='hour' in Europe/Berlin"):
        IntervalSchedule.parse("hour", "Europe/Berlin").of_key(key)


@given(st.text(max_size=30))
def test_no_text_breaks_the_readers(text):
    for read in (IntervalSchedule.parse, IntervalSchedule.parse("hour").of_key):
        with suppress(UsageError):
            read(text)
