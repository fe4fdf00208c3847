"""
Strict parsers of parameters: policies, switches, times, durations and numbers.

Each raises a UsageError that names the parameter, its value and the expected values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, get_args

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text, unexpected

OutOfRangePolicy = Literal["fail", "clamp", "skip"]
"""What to do about an offset outside its log: refuse it, move it to the nearer end, or leave it alone."""

MissingCommitPolicy = Literal["fail", "earliest", "latest", "skip"]
"""
The assumed position of a partition without a committed offset.

``fail`` raises an error. ``earliest`` and ``latest`` mean the start and the end of its log, as in a
consumer's ``auto.offset.reset``. ``skip`` leaves the partition out.
"""

StartMissingCommitPolicy = Literal["fail", "earliest", "latest"]
""":data:`MissingCommitPolicy` for reads, where each partition needs an offset to start from."""

RestoreMissingCommitPolicy = Literal["skip", "earliest"]
""":data:`MissingCommitPolicy` of a restore: the partition keeps its position, or moves to its log start."""

_DURATION = re.compile(
    r"P(?:([0-9]{1,9})D)?(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)
"""The format of ``java.time.Duration.parse``, without signs."""

_SHORT_DURATION = re.compile(
    r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?"
)
"""Durations such as ``2h`` or ``1h30m``. Only lowercase, because an ``M`` in ISO 8601 may mean months."""

MAX_PATTERN = 50_000
"""Largest length of a regular expression; compiling it takes 200 bytes per character."""

_MOST_CHARACTERS = 1_000

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

LONGEST = timedelta(days=36_525)
"""A hundred years; a longer duration may lead to a time outside Python's calendar."""

LONGEST_GRACE = timedelta(days=7)
"""Kafka's default retention of a group's offsets: a commit that is missing for longer is lost, not late."""


def _strip_short(text: str) -> str:
    """Return a text without whitespace at its ends; ``""`` if it is too long for any parameter."""
    text = text.strip()
    return text if len(text) <= _MOST_CHARACTERS else ""


def parse_choice(value: object, choices: object, parameter: str) -> Any:
    """Check a parameter with the values of a ``Literal`` type."""
    known = get_args(choices)
    if value not in known:
        raise unexpected(parameter, value, f"one of {', '.join(map(repr, known))}")
    return value


def choice_parser(choices: object) -> Callable[[object, str], Any]:
    """Return a parser of parameters with a fixed set of values, see :func:`parse_choice`."""
    return lambda value, parameter: parse_choice(value, choices, parameter)


def parse_switch(value: object, parameter: str) -> bool:
    """Parse a switch: a bool, or ``true`` or ``false`` in any case; ``"0"`` and ``"no"`` are refused."""
    text = _strip_short(str(value)).lower() if isinstance(value, str | bool) else ""
    if text in ("true", "false"):
        return text == "true"
    raise unexpected(parameter, value, "true or false")


def parse_time(value: object, parameter: str) -> datetime:
    """Parse a time: a datetime, or ISO 8601 text; without a time zone it is in UTC, as in Kafka's tool."""
    moment = value
    # In milliseconds since 1970, Python may find a year, a month, a day, any separator, and a time.
    if isinstance(value, str) and not re.match(r"[0-9]{9}", text := _strip_short(value)):
        with suppress(ValueError):
            moment = datetime.fromisoformat(text.upper())
    if not isinstance(moment, datetime):
        raise unexpected(parameter, value, time_example())
    # Without Pendulum's class, whose differences cannot be divided by a timedelta.
    moment = datetime.fromisoformat(moment.isoformat())
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def time_example(variable: str = "data_interval_start") -> str:
    """Return an example of a time, for an error text; for a DAG also a template with ``variable``."""
    template = dag_text(f" or '{{{{ {variable} }}}}'")
    return f"a time such as '2026-03-01T00:00:00+00:00'{template}"


def parse_duration(
    value: object, parameter: str, *, maximum: timedelta = LONGEST, allow_zero: bool = True
) -> timedelta | None:
    """
    Parse a duration: seconds, a timedelta, text such as ``10m``, ``7d`` or ``1h30m``, or ISO 8601 text as in
    Kafka's tool, such as ``PT10M`` or ``P1DT2H``.
    """
    if value is None:
        return None
    text = _strip_short(value) if isinstance(value, str) else value
    text = text.total_seconds() if isinstance(text, timedelta) else text
    duration = timedelta(-1)
    with suppress(ValueError, OverflowError):
        found = isinstance(text, str) and (
            _SHORT_DURATION.fullmatch(text) or _DURATION.fullmatch(text.upper())
        )
        if found and any(found.groups()):
            days, hours, minutes, seconds = (float(number or 0) for number in found.groups())
            duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        elif isinstance(text, str | int | float) and not isinstance(text, bool):
            duration = timedelta(seconds=float(text))
    if not timedelta(0) <= duration <= maximum or (not duration and not allow_zero):
        longest = plural(maximum.days, "day") if maximum.days else f"{maximum.total_seconds():g} seconds"
        expected = f"seconds, or a duration such as '10m' or 'PT10M', {'' if allow_zero else 'above 0 and '}"
        raise unexpected(parameter, value, f"{expected}of at most {longest}")
    return duration


def parse_seconds(
    value: object, parameter: str, *, maximum: float = LONGEST.total_seconds(), allow_zero: bool = True
) -> float | None:
    """Parse a duration like :func:`parse_duration`; return seconds."""
    duration = parse_duration(value, parameter, maximum=timedelta(seconds=maximum), allow_zero=allow_zero)
    return None if duration is None else duration.total_seconds()


def parse_interval(value: object, parameter: str) -> float | None:
    """Parse a duration above 0 like :func:`parse_duration`; return seconds."""
    return parse_seconds(value, parameter, allow_zero=False)


def parse_text(value: object, parameter: str) -> str:
    """Parse a text that is not empty, see :func:`is_blank`."""
    if not isinstance(value, str):
        raise parameter_error(parameter, f": found {type(value).__name__}; expected text")
    if is_blank(value):
        raise parameter_error(
            parameter,
            f" is empty: expected a value; omit {parameter_text(parameter)} if it is not needed",
            value,
        )
    return value


def parse_pattern(value: object, parameter: str) -> re.Pattern[str]:
    """Parse a regular expression of at most :data:`MAX_PATTERN` characters."""
    text = parse_text(value, parameter)
    if len(text) > MAX_PATTERN:
        raise parameter_error(
            parameter,
            f" has {len(text):,} characters; expected at most {MAX_PATTERN:,}: name the topics as a list, or "
            "give a shorter pattern",
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise parameter_error(parameter, f" is not a regular expression: {reason}", text) from None


def parse_count(value: object, parameter: str, *, minimum: int = 0) -> int | None:
    """Parse a whole number: an int or its digits; ``"1e3"`` and ``10.0`` are refused."""
    text = value.strip() if isinstance(value, str) else ""
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else value
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= minimum):
        return number
    raise unexpected(parameter, value, f"{minimum} or more, as a whole number")


def timestamp_ms(moment: datetime) -> int:
    """Return a time as Kafka's timestamp: milliseconds since 1970, rounded down exactly."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def iso_time(milliseconds: int) -> str:
    """
    Return a timestamp of Kafka as ISO 8601 text in UTC, with milliseconds if they are not 0.

    A number outside the calendar, as a producer may write it, is returned as a number.
    """
    try:
        moment = EPOCH + timedelta(milliseconds=milliseconds)
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


def has_template(text: str) -> bool:
    """Whether a text has an expression, a statement or a comment of Jinja, which Airflow would render."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def is_blank(value: object) -> bool:
    """Whether a value is ``None`` (also as text) or blank, as a template renders a missing variable."""
    return value is None or (
        isinstance(value, str) and value.strip().strip('"').strip() in ("", "None", "null")
    )


def exactly_one(parameters: Mapping[str, object]) -> tuple[str, object]:
    """
    Return the only parameter that is given; ``None`` and an empty text count as not given.

    So a DAG's ``params`` can select a scenario: the operator templates all of them, and only one renders a
    value.

    :raises UsageError: if no parameter or several parameters are given.
    """
    given = {name: value for name, value in parameters.items() if not is_blank(value)}
    if len(given) != 1:
        # An empty one may be a template, such as the data interval of a run that has none.
        shown = given or {name: value for name, value in parameters.items() if value is not None}
        found = ", ".join(parameter_text(name, value) for name, value in shown.items())
        found = f"found {'' if given else 'no value in '}{found}" if shown else "nothing was given"
        names = ", ".join(map(parameter_text, parameters))
        raise UsageError(f"{found}; expected exactly one of {names}")
    return next(iter(given.items()))
