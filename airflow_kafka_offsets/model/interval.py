"""
Intervals of record time: hours, days, the periods of a cron expression, or a fixed length.

An interval is named by its *key*: what the clock of its time zone shows when it starts, in the form of
Airflow's partition keys, so that Airflow's own partition mappers read it. The intervals of a schedule follow
one another without a gap, and each has its own key. This includes clock changes:

- A clock that is set back shows some times twice. Only the first time starts an interval, so that an hour
  that is shown twice is one interval of two hours.
- A clock that is set forward skips some times. A start that it skips is the moment of the change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.parameters import EPOCH, parse_duration, parse_text
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text, unexpected

KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The default of Airflow's temporal partition mappers and of ``CronPartitionTimetable``."""

MOST_INTERVALS = 1_000
"""Most intervals of an asset in one run: Airflow stores an event for each, and may start a run for each."""

_NAMED = {"hour": "0 * * * *", "day": "0 0 * * *", "@hourly": "0 * * * *", "@daily": "0 0 * * *"}
_EXPECTED = (
    "'hour', 'day', a cron expression of five fields such as '0 6 * * *', or a duration such as 'PT15M' or a "
    "timedelta"
)
_LONGEST = timedelta(days=366)
_KEY = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}(:\d{2}(:\d{2})?)?)?", re.ASCII)
"""A key, also one that Airflow's mappers to hours and days have shortened."""
_SHORTENED = {10: "days", 13: "hours", 16: "minutes"}
_RANDOM = re.compile(r"(^|[\s,])[hr](\(|/|,|\s|$)", re.IGNORECASE)
"""Fields that croniter fills with a hash or a random number."""
_AROUND = timedelta(hours=26)
"""Longer than any change of a clock."""


@dataclass(frozen=True)
class Interval:
    """A half-open interval of record time, [start, end); ``key`` is unique within its schedule."""

    key: str
    start: datetime
    end: datetime

    def as_json(self) -> dict[str, str]:
        """Return plain JSON: ``key``, ``start`` and ``end`` in ISO 8601 and UTC."""
        return {"key": self.key, "start": self.start.isoformat(), "end": self.end.isoformat()}

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class IntervalSchedule:
    """
    A sequence of intervals, one after the other.

    :param every: as it was given, without surrounding whitespace.
    :param zone: name of the time zone whose clock the intervals follow.
    :param cron: when intervals start; empty if they have a fixed length.
    :param length: the fixed length; intervals are counted from 1970-01-01T00:00 UTC.
    """

    every: str
    zone: str
    cron: str = ""
    length: timedelta = timedelta(0)

    @classmethod
    def parse(cls, every: object, zone: object = "UTC") -> IntervalSchedule:
        """Read ``every`` and ``timezone``; raise a UsageError if the two contradict each other."""
        name = parse_timezone(zone)
        text = every.strip() if isinstance(every, str) else every
        if isinstance(text, str) and (text in _NAMED or len(text.split()) > 1):
            return cls(text, name, cron=_parse_cron(_NAMED.get(text, text), text))
        length = None
        if isinstance(text, str | timedelta):
            with suppress(UsageError):
                length = parse_duration(text, "every", maximum=_LONGEST, allow_zero=False)
        if length is None or length % timedelta(seconds=1):
            raise unexpected("every", every, f"{_EXPECTED}, in whole seconds")
        if name != "UTC":
            raise UsageError(
                f"{parameter_text('every', every)} is a length, and {parameter_text('timezone', name)} has "
                f"no effect on it: leave {parameter_text('timezone')} out, or give 'hour', 'day' or a cron "
                "expression, which follow a clock"
            )
        return cls(f"PT{int(length.total_seconds())}S", name, length=length)

    @property
    def canonical(self) -> str:
        """Return a text that is the same for the same intervals."""
        return f"{self.cron or self.every} {self.zone}"

    def containing(self, moment: datetime) -> Interval:
        """Return the interval that a moment is in."""
        *_, found = takewhile(lambda each: each.start <= moment, self._around(moment))
        return found

    def since(self, moment: datetime) -> Iterator[Interval]:
        """Return the intervals that start at or after a moment, without end."""
        return (each for each in self._around(moment) if each.start >= moment)

    def of_key(self, key: object) -> Interval:
        """Return a key's interval, or raise a UsageError; Airflow's mappers may have shortened the key."""
        text = parse_text(key, "partition_key")
        with suppress(ValueError, OverflowError):
            if _KEY.fullmatch(text):
                shown = datetime.fromisoformat(text)
                found = self.containing(self._to_utc(shown))
                # A day's key must not select an hour: a shortened key must not cover more than the interval.
                covered = timedelta(**{_SHORTENED[len(text)]: 1}) if len(text) in _SHORTENED else timedelta()
                if found.key == shown.strftime(KEY_FORMAT) and self._to_utc(shown + covered) <= found.end:
                    return found
        now = datetime.now(tz=timezone.utc)
        schedule = f"{parameter_text('every', self.every)} in {self.zone}"
        raise parameter_error(
            "partition_key",
            f" is not the start of an interval of {schedule}: expected a key such as "
            f"{self.containing(now).key!r}; correct {parameter_text('every')}, {parameter_text('timezone')} "
            "or the run's key",
            text,
        )

    def _around(self, moment: datetime) -> Iterator[Interval]:
        """Return the intervals from one that contains a moment, or an earlier one, on."""
        starts = self._steps(moment) if self.length else self._ticks(moment)
        for (shown, start), (_, end) in pairwise(starts):
            yield Interval(shown.strftime(KEY_FORMAT), start, end)

    def _steps(self, moment: datetime) -> Iterator[tuple[datetime, datetime]]:
        at = EPOCH + (moment - EPOCH) // self.length * self.length
        while True:
            yield at.replace(tzinfo=None), at
            at += self.length

    def _ticks(self, moment: datetime) -> Iterator[tuple[datetime, datetime]]:
        """
        Return what the clock shows at each start, and the moment.

        A time that the clock skips becomes a moment after the change, where a time that the clock shows may
        start an interval too. So these moments wait for the next shown time: no later time is before it.
        """
        waiting: dict[datetime, datetime] = {}
        for shown in self._clock_times(moment):
            at = self._to_utc(shown)
            there = at.astimezone(self._tz).replace(tzinfo=None) == shown
            if there or at not in waiting:
                waiting[at] = shown
            if there:
                for known in sorted(each for each in waiting if each <= at):
                    yield waiting.pop(known), known

    def _clock_times(self, moment: datetime) -> Iterator[datetime]:
        # Airflow requires croniter; a Spark driver has neither, and needs neither.
        from croniter import CroniterBadDateError, croniter

        shown = moment.astimezone(self._tz).replace(tzinfo=None, microsecond=0)
        before, after = ((moment + by).astimezone(self._tz) for by in (-_AROUND, _AROUND))
        if before.utcoffset() != after.utcoffset():
            shown -= 2 * _AROUND
        # The last tick that is not after it.
        ticks = croniter(self.cron, shown + timedelta(seconds=1))
        with suppress(CroniterBadDateError):
            yield ticks.get_prev(datetime)
            while True:
                yield ticks.get_next(datetime)

    def _to_utc(self, shown: datetime) -> datetime:
        # A time that is shown twice means the first one; a skipped time counts from before the change
        # (PEP 495).
        return shown.replace(tzinfo=self._tz, fold=0).astimezone(timezone.utc)

    @property
    def _tz(self) -> ZoneInfo:
        return ZoneInfo(self.zone)


def parse_timezone(value: object, parameter: str = "timezone") -> str:
    """Read the name of a time zone."""
    name = parse_text(value, parameter)
    try:
        ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # the error depends on the name
        expected = "the name of a time zone, such as 'UTC' or 'Europe/Berlin'"
        raise unexpected(parameter, name, expected) from None
    return name


def _parse_cron(cron: str, given: str) -> str:
    from croniter import CroniterError, croniter

    error = ""
    if _RANDOM.search(cron):
        error = "a field that is filled with a hash or a random number"
    elif len(cron.split()) != 5:
        error = f"{len(cron.split())} fields"
    else:
        try:
            ticks = croniter(cron, datetime(2024, 1, 1))  # what a clock shows
            first, second = ticks.get_next(datetime), ticks.get_next(datetime)
        except CroniterError as refused:
            error = str(refused)
        else:
            if second - first > _LONGEST:
                error = f"more than {_LONGEST.days} days between {first} and {second}"
    if error:
        raise parameter_error("every", f": found {error}; expected {_EXPECTED}", given)
    return " ".join(cron.split())
