"""A run reads the interval that its events have emitted, and no other one."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.interval import IntervalSchedule
from airflow_kafka_offsets.task.interval_memory import check_emitted_interval

MIDNIGHT = "2026-03-01T00:00:00"


class AssetKey(NamedTuple):
    """What Airflow names an asset by in the events of a run."""

    name: str


def check(key, every, zone, *events, own=("hour", "UTC")):
    emitted = [
        SimpleNamespace(partition_key=name, extra={"every": every, "timezone": zone, "token": "t"})
        for name in events
    ]
    context: Any = {"triggering_asset_events": {AssetKey("hours"): emitted}}
    check_emitted_interval(context, key, IntervalSchedule.parse(*own).of_key(key))


@pytest.mark.parametrize(("every", "own"), [("hour", "hour"), ("hour", "PT1H"), ("PT3600S", "0 * * * *")])
def test_the_same_interval_may_have_another_name(every, own):
    check(MIDNIGHT, every, "UTC", MIDNIGHT, own=(own, "UTC"))


@pytest.mark.parametrize(
    ("every", "zone", "own", "says"),
    [
        ("day", "UTC", ("hour", "UTC"), "emits the events ('day', 'UTC')"),
        ("hour", "UTC", ("day", "UTC"), "emits the events ('hour', 'UTC')"),
        ("day", "Europe/Berlin", ("day", "UTC"), "emits the events ('day', 'Europe/Berlin')"),
    ],
)
def test_another_interval_of_the_same_key_is_refused(every, zone, own, says):
    with pytest.raises(UsageError, match="of the asset 'hours', and this task would read from") as error:
        check(MIDNIGHT, every, zone, MIDNIGHT, own=own)
    assert says in str(error.value)


def test_a_key_that_a_mapper_has_shortened_starts_the_emitted_interval():
    check("2026-03-01T14", "hour", "UTC", "2026-03-01T14:00:00")
    check("2026-03-01", "day", "UTC", MIDNIGHT, own=("day", "UTC"))
    check("2026-03-01T00", "day", "UTC", MIDNIGHT)  # of a day that is divided into hours
    with pytest.raises(UsageError, match="'hour', 'America/New_York'"):
        check("2026-03-01T14", "hour", "America/New_York", "2026-03-01T14:00:00")


HOURS = [f"2026-03-01T{hour:02}:00:00" for hour in range(24)]


@pytest.mark.parametrize("key", ["2026-03-01", MIDNIGHT])
@pytest.mark.parametrize("hours", [HOURS, HOURS[3:], HOURS[-1:]])
def test_a_day_that_a_mapper_has_made_of_hours_ends_with_the_last_of_them(key, hours):
    check(key, "hour", "UTC", *hours, own=("day", "UTC"))


@pytest.mark.parametrize("hours", [HOURS[:-1], HOURS[5:7], HOURS[5:6], HOURS[:1]])
def test_a_day_of_which_later_hours_are_not_complete_is_refused(hours):
    with pytest.raises(UsageError, match="or an asset of longer intervals"):
        check("2026-03-01", "hour", "UTC", *hours, own=("day", "UTC"))


def test_a_day_of_another_time_zone_than_its_hours_is_refused():
    for zone in ("Europe/Berlin", "America/New_York"):
        with pytest.raises(UsageError, match="'hour', 'UTC'"):
            check("2026-03-01", "hour", "UTC", *HOURS, own=("day", zone))


@pytest.mark.parametrize(
    "extra",
    [{}, None, {"every": "day", "timezone": "UTC"}, {"every": "?", "timezone": "UTC", "token": "t"}],
)
def test_events_of_other_tasks_are_not_compared(extra):
    event = SimpleNamespace(partition_key=MIDNIGHT, extra=extra)
    context: Any = {"triggering_asset_events": {AssetKey("hours"): [event]}}
    check_emitted_interval(context, MIDNIGHT, IntervalSchedule.parse("hour").of_key(MIDNIGHT))


def test_a_run_without_events_is_not_checked():
    for context in ({}, {"triggering_asset_events": {}}, {"triggering_asset_events": None}):
        check_emitted_interval(context, MIDNIGHT, IntervalSchedule.parse("hour").of_key(MIDNIGHT))  # type: ignore[arg-type]
