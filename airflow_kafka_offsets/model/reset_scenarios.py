"""
Which offset does a reset mean for each partition?

The scenarios are those of ``kafka-consumer-groups --reset-offsets`` (Apache Kafka,
``ConsumerGroupCommand.prepareOffsetsToReset``). What Kafka's tool clamps silently is left as asked here
and decided by the plan's policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, get_args

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    LogRange,
    Offsets,
    TopicPartition,
    parse_csv,
    parse_offsets,
    summarize,
)
from airflow_kafka_offsets.model.text import shorten

LogPosition = Literal["earliest", "latest", "current"]

_DURATION = re.compile(
    r"P(?:([0-9]{1,9})D)?(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)
"""What ``java.time.Duration.parse`` takes, without signs."""

LONGEST = timedelta(days=36_525)
"""A hundred years: with longer durations, times leave the calendar."""


@dataclass(frozen=True)
class ToOffset:
    """Move to a number (the same for each partition), to offsets of one's own, or to a place in the log."""

    to: int | LogPosition | Offsets

    @classmethod
    def parse(cls, value: object) -> ToOffset:
        """
        Read ``to_offset``: a number, ``earliest``, ``latest``, ``current``, or offsets in Spark's form.

        :raises UsageError: if it is anything else.
        """
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and text in get_args(LogPosition):
            return cls(text)  # type: ignore[arg-type]
        if isinstance(text, str) and re.fullmatch(r"[0-9]{1,19}", text):
            text = int(text)
        if isinstance(text, int) and not isinstance(text, bool) and 0 <= text <= MAX_OFFSET:
            return cls(text)
        if isinstance(text, Mapping) or (isinstance(text, str) and text.startswith("{")):
            return cls(parse_offsets(text, "to_offset"))
        raise UsageError(
            f"to_offset={shorten(value)}: expected a whole number from 0, 'earliest', 'latest', 'current', or offsets "
            'as {"topic": {"0": 42}}'
        )


@dataclass(frozen=True)
class ShiftBy:
    """Move by a number of offsets from where the group stands: forward, or back where it is negative."""

    by: int

    @classmethod
    def parse(cls, value: object) -> ShiftBy:
        """
        Read ``shift_by``: a whole number, also as text with a sign.

        :raises UsageError: if it is anything else.
        """
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            text = int(text)
        if isinstance(text, int) and not isinstance(text, bool) and abs(text) <= MAX_OFFSET:
            return cls(text)
        raise UsageError(f"shift_by={shorten(value)}: expected a whole number of offsets, such as -100")


@dataclass(frozen=True)
class ToDatetime:
    """Move each partition to its first record at or after a time, else to its log end."""

    moment: datetime

    @classmethod
    def parse(cls, value: object) -> ToDatetime:
        """
        Read ``to_datetime``, see :func:`parse_time`.

        :raises UsageError: if it is no time.
        """
        return cls(parse_time(value, "to_datetime"))


@dataclass(frozen=True)
class ByDuration:
    """Move each partition to where it stood a while ago: as :class:`ToDatetime`, for now less a duration."""

    duration: timedelta

    @classmethod
    def parse(cls, value: object) -> ByDuration:
        """
        Read ``by_duration``: a timedelta, or ISO 8601 text as Kafka's tool takes it, such as ``P1DT2H``.

        :raises UsageError: if it is anything else.
        """
        duration = value if isinstance(value, timedelta) else None
        found = _DURATION.fullmatch(value.strip().upper()) if isinstance(value, str) else None
        if found is not None and any(found.groups()):
            days, hours, minutes, seconds = (float(number or 0) for number in found.groups())
            with suppress(OverflowError):
                duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if duration is None or not timedelta(0) <= duration <= LONGEST:
            raise UsageError(
                f"by_duration={shorten(value)}: expected a duration such as 'PT1H' or 'P1DT2H30M', or a timedelta, of at "
                f"most {LONGEST.days} days"
            )
        return cls(duration)


@dataclass(frozen=True)
class FromFile:
    """
    Move to the offsets of a file in Kafka's CSV.

    :param name: the file, for the receipt.
    :param text: what is in it.
    """

    name: str
    text: str

    def offsets(self, group_id: str, groups: int) -> Offsets:
        """
        Return the file's offsets for a group.

        :param groups: number of groups that are moved: lines of three columns need it to be one.
        :raises OffsetsFormatError: if it has no line for the group, or is not Kafka's CSV.
        """
        if groups > 1 and self.text.lstrip().split("\n", 1)[0].count(",") == 2:
            raise OffsetsFormatError(
                f"{self.name} has lines of topic,partition,offset, and {groups} groups are moved: give lines of "
                "group,topic,partition,offset"
            )
        return parse_csv(self.text, group_id)[group_id]

    def groups(self, group_ids: Sequence[str]) -> dict[str, Offsets]:
        """
        Return the file's offsets for several groups.

        :raises OffsetsFormatError: as :meth:`offsets`.
        """
        return {group_id: self.offsets(group_id, len(group_ids)) for group_id in group_ids}


Scenario = ToOffset | ToDatetime | ShiftBy | ByDuration | FromFile

RestoreNoCommit = Literal["skip", "earliest"]
"""What becomes of a partition that had no commit when one is restored: it stays where it is, or goes to its log start."""

NoCommit = Literal["fail", "earliest", "latest", "skip"]
"""Where a partition without a commit stands for ``current`` and ``shift_by``: an error, its log start or end, nowhere."""


def is_relative(scenario: Scenario) -> bool:
    """Whether applying it twice moves further than applying it once, so that a retry must not."""
    return isinstance(scenario, ShiftBy | ByDuration) or (
        isinstance(scenario, ToOffset) and scenario.to == "latest"
    )


def needs_commits(scenario: Scenario) -> bool:
    """Whether it starts from where the group stands."""
    return isinstance(scenario, ShiftBy) or (isinstance(scenario, ToOffset) and scenario.to == "current")


def standing(
    committed: Mapping[TopicPartition, int | None],
    logs: Mapping[TopicPartition, LogRange],
    on_no_commit: NoCommit,
) -> Offsets:
    """
    Return where each partition stands, those without a commit as the policy says.

    :raises PlanRefusedError: under ``fail``, if a partition has no commit.
    """
    without = [tp for tp, offset in committed.items() if offset is None]
    if without and on_no_commit == "fail":
        raise PlanRefusedError(
            [
                f"{summarize(without)} has no committed offset to start from: leave it out with topics=, or set "
                "on_no_commit to 'earliest', 'latest' or 'skip'"
            ]
        )
    at = {"earliest": lambda log: log.start, "latest": lambda log: log.end}.get(on_no_commit)
    found = {tp: offset for tp, offset in committed.items() if offset is not None}
    return found | ({tp: at(logs[tp]) for tp in without} if at else {})


def targets_in_log(
    scenario: ToOffset | ShiftBy,
    stands: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogRange],
) -> Offsets:
    """
    Return the offset meant for each partition, where no time has to be looked up.

    :param stands: where each partition stands, see :func:`standing`; other scenarios only take its partitions.
    """
    if isinstance(scenario, ShiftBy):
        # An offset below 0 cannot be written down; it is below every log start, and so out of range, all the same.
        return {tp: offset + scenario.by for tp, offset in stands.items()}
    if isinstance(scenario.to, Mapping):
        return {tp: scenario.to[tp] for tp in stands}
    if scenario.to == "earliest":
        return {tp: logs[tp].start for tp in stands}
    if scenario.to == "latest":
        return {tp: logs[tp].end for tp in stands}
    if isinstance(scenario.to, int):
        return dict.fromkeys(stands, scenario.to)
    return dict(stands)


def parse_time(value: object, parameter: str) -> datetime:
    """
    Read a point in time: a datetime, or ISO 8601 text with or without a zone.

    Without a zone it is UTC, as in Kafka's tool.

    :raises UsageError: if it is neither.
    """
    moment = value
    if isinstance(value, str):
        text = value.strip()
        # Python 3.10 does not read the Z that ISO 8601 allows.
        text = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        raise UsageError(
            f"{parameter}={shorten(value)}: expected a time such as '2026-03-01T00:00:00+00:00' or "
            "'{{ data_interval_start }}'"
        )
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def parse_duration(value: object, parameter: str) -> timedelta | None:
    """
    Read a duration: a timedelta, seconds, or ISO 8601 text such as ``PT10M``; none means ``None``.

    :raises UsageError: if it is anything else, or negative.
    """
    if isinstance(value, str):
        value = value.strip()
    if value is None:
        return None
    try:
        if isinstance(value, str) and value[:1] in ("P", "p"):
            duration = ByDuration.parse(value).duration
        else:
            duration = value if isinstance(value, timedelta) else timedelta(seconds=float(str(value)))
    except (ValueError, OverflowError):
        duration = timedelta(-1)
    if not timedelta(0) <= duration <= LONGEST:
        raise UsageError(
            f"{parameter}={shorten(value)}: expected seconds, a duration such as 'PT10M', or a timedelta"
        )
    return duration


def parse_seconds(value: object, parameter: str) -> float | None:
    """Read a duration as :func:`parse_duration`, in seconds."""
    duration = parse_duration(value, parameter)
    return None if duration is None else duration.total_seconds()


def check_seconds(
    value: object, parameter: str, *, most: float = LONGEST.total_seconds(), zero: bool = False
) -> float:
    """
    Return a number of seconds that a wait or a call can have.

    :param most: the largest one.
    :param zero: whether 0 is one.
    :raises UsageError: if it is none, such as ``inf`` or ``nan``.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if 0 < number <= most or (zero and number == 0):
        return number
    least = "from 0" if zero else "above 0"
    raise UsageError(f"{parameter}={shorten(value)}: expected seconds {least}, at most {most:g}")


def check_number(value: object, parameter: str) -> None:
    """
    Refuse a threshold that is no number from 0; ``None`` is none at all.

    :raises UsageError: for a text too, even if it reads as a number.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"{parameter}={value!r}: expected 0 or more, as a number")


def timestamp_ms(moment: datetime) -> int:
    """Return a time as Kafka's timestamp: milliseconds since 1970, rounded down exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def iso_time(milliseconds: int) -> str:
    """
    Return a timestamp of Kafka as ISO 8601 text in UTC, to the millisecond where it has them.

    A producer may write any number: those that no calendar has, such as microseconds, stay numbers.
    """
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms since 1970"
    text = moment.isoformat(timespec="milliseconds" if milliseconds % 1_000 else "seconds")
    return text.replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: ``20 d 19 h``, ``1 h 5 min``, ``2 min 3 s``, ``42 s``."""
    left = round(seconds)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    first = next((at for at, (_, size) in enumerate(units) if left >= size), len(units) - 1)
    words: list[str] = []
    for unit, size in units[first : first + 2]:
        number, left = divmod(left, size)
        if number or not words:
            words.append(f"{number} {unit}")
    return " ".join(words)


def offsets_at_time(
    first_at_or_after: Mapping[TopicPartition, int | None], logs: Mapping[TopicPartition, LogRange]
) -> Offsets:
    """
    Return where each partition stands at a time: its first record at or after, else its log end.

    A partition that is empty, or whose last record is older, has nothing at or after the time: its log end
    is the exact answer.
    """
    return {
        tp: logs[tp].end if offset is None else max(offset, logs[tp].start)
        for tp, offset in first_at_or_after.items()
    }


def exactly_one(parameters: Mapping[str, object]) -> tuple[str, object]:
    """
    Return the one parameter that is given; empty text and ``None`` mean not given.

    That way a DAG's ``params`` can drive a reset: every scenario is in the template, one is filled in.

    :raises UsageError: if none or several are given.
    """
    given = {
        name: value
        for name, value in parameters.items()
        if value is not None and not (isinstance(value, str) and value.strip() in ("", "None"))
    }
    if len(given) != 1:
        found = ", ".join(f"{name}={shorten(value, 40)}" for name, value in given.items()) or "none of them"
        raise UsageError(f"found {found}; expected exactly one of {', '.join(parameters)}")
    return next(iter(given.items()))
