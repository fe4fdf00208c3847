"""Bounds of a window as they are given, before the log is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.formats import offsets_text, parse_offsets
from airflow_kafka_offsets.model.offsets import Offsets, summarize
from airflow_kafka_offsets.model.parameters import parse_time
from airflow_kafka_offsets.model.text import shorten


@dataclass(frozen=True)
class WindowBound:
    """The start or the end of a window: a place in the log, a time, or offsets."""

    at: Literal["committed", "earliest", "latest"] | datetime | Offsets

    @classmethod
    def start(cls, value: object) -> WindowBound:
        """Read ``start``: ``committed``, ``earliest``, a time, or offsets in Spark's form."""
        return cls._parse(value, "start", ("committed", "earliest"))

    @classmethod
    def end(cls, value: object) -> WindowBound:
        """Read ``end``: ``latest``, a time, or offsets in Spark's form."""
        return cls._parse(value, "end", ("latest",))

    @classmethod
    def _parse(cls, value: object, parameter: str, places: tuple[str, ...]) -> WindowBound:
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and text in places:
            return cls(text)  # type: ignore[arg-type]
        if isinstance(text, Mapping) or (isinstance(text, str) and text.startswith("{")):
            return cls(parse_offsets(text, parameter))
        try:
            return cls(parse_time(text, parameter))
        except UsageError:
            raise UsageError(
                f"{parameter}={shorten(value)}: expected {', '.join(map(repr, places))}, a time such as "
                "'2026-03-01T00:00:00+00:00' or '{{ data_interval_start }}', or offsets as {\"topic\": "
                '{"0": 42}}'
            ) from None

    @property
    def moment(self) -> datetime | None:
        """The time, if it is one."""
        return self.at if isinstance(self.at, datetime) else None

    @property
    def offsets(self) -> Offsets | None:
        """The offsets, if it names them."""
        return dict(self.at) if isinstance(self.at, Mapping) else None

    @property
    def lasting(self) -> bool:
        """Whether it means the same records whenever it is looked up."""
        return not isinstance(self.at, str)

    def as_text(self) -> str:
        """Return text: the place, the time in ISO 8601, or the offsets in Spark's form."""
        if isinstance(self.at, datetime):
            return self.at.isoformat()
        return offsets_text(self.at) if isinstance(self.at, Mapping) else self.at

    def __str__(self) -> str:
        return "offsets" if isinstance(self.at, Mapping) else self.as_text()


def check_bounds(start: WindowBound, end: WindowBound, now: datetime | None = None) -> None:
    """Refuse a window without length, that ends before it starts, or that ends after ``now``."""
    begins, ends = start.moment, end.moment
    refusals = []
    if begins is not None and begins == ends:
        refusals.append(
            f"start and end are both {begins.isoformat()}, a window without length: in Airflow 3 a plain "
            "cron string gives data intervals of no length; set schedule=CronDataIntervalTimetable('0 0 * * "
            "*', timezone='UTC') (from airflow.timetables.interval), or give other times"
        )
    if begins is not None and ends is not None and begins > ends:
        refusals.append(
            f"start={begins.isoformat()} is after end={ends.isoformat()}: exchange them, or give other times"
        )
    bounds = (("start", begins), ("end", ends))
    if now and (late := [f"{name}={at.isoformat()}" for name, at in bounds if at and at > now]):
        refusals.append(
            f"{' and '.join(late)} is in the future (it is {now.isoformat(timespec='seconds')}): records of "
            "the window may still come; plan it when the time has passed, or with end='latest'"
        )
    if (
        start.offsets is not None
        and end.offsets is not None
        and (odd := start.offsets.keys() ^ end.offsets.keys())
    ):
        refusals.append(
            f"start and end name different partitions, {summarize(odd)} is in one of them only: name the "
            "same in both"
        )
    if refusals:
        raise PlanRefusedError(refusals)
