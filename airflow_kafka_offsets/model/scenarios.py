"""
Which offset does a reset mean for each partition?

The scenarios are those of ``kafka-consumer-groups --reset-offsets`` (Apache Kafka,
``ConsumerGroupCommand.prepareOffsetsToReset``). What Kafka's tool clamps silently is left as asked here
and decided by the plan's policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, get_args

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import (
    LogRange,
    Offsets,
    TopicPartition,
    parse_offsets,
    shorten,
    summarize,
)

LogPosition = Literal["earliest", "latest", "current"]


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
        if isinstance(text, str) and text.isascii() and text.isdigit():
            return cls(int(text))
        if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
            return cls(text)
        if isinstance(text, Mapping) or (isinstance(text, str) and text.startswith("{")):
            return cls(parse_offsets(text, "to_offset"))
        raise UsageError(
            f"to_offset={shorten(value)}: expected a whole number from 0, 'earliest', 'latest', 'current', or offsets "
            'as {"topic": {"0": 42}}'
        )

    def targets(
        self,
        partitions: Sequence[TopicPartition],
        committed: Mapping[TopicPartition, int | None],
        logs: Mapping[TopicPartition, LogRange],
    ) -> Offsets:
        """
        Return the offset meant for each partition.

        :raises PlanRefusedError: for ``current``, if a partition has no commit.
        """
        if isinstance(self.to, Mapping):
            return {tp: self.to[tp] for tp in partitions}
        if self.to == "earliest":
            return {tp: logs[tp].start for tp in partitions}
        if self.to == "latest":
            return {tp: logs[tp].end for tp in partitions}
        if isinstance(self.to, int):
            return dict.fromkeys(partitions, self.to)
        without = [tp for tp in partitions if committed[tp] is None]
        if without:
            raise PlanRefusedError(
                [
                    f"to_offset='current' and {summarize(without)} has no committed offset: leave the partition out "
                    "with topics=, or use to_offset='earliest' or 'latest'"
                ]
            )
        return {tp: offset for tp in partitions if (offset := committed[tp]) is not None}


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


Scenario = ToOffset | ToDatetime


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


def timestamp_ms(moment: datetime) -> int:
    """Return a time as Kafka's timestamp: milliseconds since 1970, rounded down exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


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
