"""
Scenarios of a reset: which offset each one means for a partition.

They are those of ``kafka-consumer-groups --reset-offsets`` (Apache Kafka,
``ConsumerGroupCommand.prepareOffsetsToReset``), and the end of a batch of a Spark checkpoint.
Offsets that Kafka's tool clamps silently are left as asked here, and decided by the plan's policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Literal, get_args

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.formats import lines_of, parse_csv, parse_offsets
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets
from airflow_kafka_offsets.model.parameters import (
    parse_count,
    parse_duration,
    parse_time,
)
from airflow_kafka_offsets.model.text import shorten

LogPosition = Literal["earliest", "latest", "current"]


class _Scenario:
    """
    What a scenario is unless it says otherwise.

    ``relative``: applying it twice moves further than applying it once, so that a retry must not.
    ``from_commits``: it starts from the group's commits. ``named``: the offsets that it names partition by
    partition, for whatever group.
    """

    @property
    def relative(self) -> bool:
        return False

    @property
    def from_commits(self) -> bool:
        return False

    @property
    def named(self) -> Offsets | None:
        return None


@dataclass(frozen=True)
class ToOffset(_Scenario):
    """Move to a number (the same for each partition), to given offsets, or to a place in the log."""

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
            f"to_offset={shorten(value)}: expected a whole number from 0, 'earliest', 'latest', 'current', "
            "or offsets "
            'as {"topic": {"0": 42}}'
        )

    @property
    def relative(self) -> bool:
        """Whether it is the log end, which moves."""
        return self.to == "latest"

    @property
    def from_commits(self) -> bool:
        """Whether it is where the group is."""
        return self.to == "current"

    @property
    def named(self) -> Offsets | None:
        """The offsets, if it is not the same for each partition."""
        return dict(self.to) if isinstance(self.to, Mapping) else None

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        return {"to_offset": "offsets" if isinstance(self.to, Mapping) else self.to}


@dataclass(frozen=True)
class ShiftBy(_Scenario):
    """Move by a number of offsets from the group's commits: forward, or back where it is negative."""

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

    relative = True
    from_commits = True

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        return {"shift_by": self.by}


@dataclass(frozen=True)
class ToDatetime(_Scenario):
    """Move each partition to its first record at or after a time, else to its log end."""

    moment: datetime

    @classmethod
    def parse(cls, value: object) -> ToDatetime:
        """
        Read ``to_datetime``, see :func:`~airflow_kafka_offsets.model.parameters.parse_time`.

        :raises UsageError: if it is no time.
        """
        return cls(parse_time(value, "to_datetime"))

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        return {"to_datetime": self.moment.isoformat()}


@dataclass(frozen=True)
class ByDuration(_Scenario):
    """Move each partition to where it was a while ago: as :class:`ToDatetime`, for now less a duration."""

    duration: timedelta

    @classmethod
    def parse(cls, value: object) -> ByDuration:
        """
        Read ``by_duration``, see :func:`~airflow_kafka_offsets.model.parameters.parse_duration`.

        :raises UsageError: if it is anything else.
        """
        duration = parse_duration(value, "by_duration")
        if duration is None:
            raise UsageError("by_duration is missing: expected a duration such as 'PT1H'")
        return cls(duration)

    relative = True

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        seconds = f"{self.duration.total_seconds():.6f}".rstrip("0").rstrip(".")
        return {"by_duration": f"PT{seconds}S"}


@dataclass(frozen=True)
class FromFile(_Scenario):
    """
    Move to the offsets of a file in Kafka's CSV.

    :param name: the file, for the receipt.
    :param text: its content.
    """

    name: str
    text: str

    def offsets(self, group_id: str, groups: int) -> Offsets:
        """
        Return the file's offsets for a group.

        :param groups: number of groups that are moved: lines of three columns need it to be one.
        :raises OffsetsFormatError: if it has no line for the group, or is not Kafka's CSV; names the file.
        """
        try:
            if groups == 1:
                return parse_csv(self.text, group_id)[group_id]
            if self._of_one_group:
                raise OffsetsFormatError(
                    f"the file has lines of topic,partition,offset, and {groups} groups are moved: give "
                    "lines of group,topic,partition,offset"
                )
            return lines_of(self._by_group, group_id)
        except OffsetsFormatError as error:
            raise OffsetsFormatError(f"{shorten(self.name)}: {error}") from None

    @cached_property
    def _of_one_group(self) -> bool:
        return self.text.lstrip().partition("\n")[0].count(",") == 2

    @cached_property
    def _by_group(self) -> dict[str, Offsets]:
        # Once: there may be as many groups as lines.
        return parse_csv(self.text)

    def groups(self, group_ids: Sequence[str]) -> dict[str, Offsets]:
        """
        Return the file's offsets for several groups.

        :raises OffsetsFormatError: as :meth:`offsets`.
        """
        return {group_id: self.offsets(group_id, len(group_ids)) for group_id in group_ids}

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        return {"from_file": self.name}


@dataclass(frozen=True)
class ToBatch(_Scenario):
    """
    Move to the end of a batch of a Spark checkpoint: where its next batch begins, as ``offsets/N`` says.

    It is absolute. A move rewrites the newest batch's file and no other, and Spark's ids go on, so a batch
    keeps its offsets, with two exceptions: the end of a batch that a move has rewritten is where that move
    led (what it was before is in the move's archive), and batches that were truncated are planned again under
    their ids, with other ends.
    """

    batch_id: int

    @classmethod
    def parse(cls, value: object) -> ToBatch:
        """
        Read ``to_batch``: a whole number from 0, also as text.

        :raises UsageError: if it is anything else.
        """
        number = parse_count(value, "to_batch")
        if number is None or number > MAX_OFFSET:
            raise UsageError(f"to_batch={shorten(value)}: expected the number of a batch")
        return cls(number)

    def as_json(self) -> dict[str, object]:
        """Return plain JSON, for the receipt."""
        return {"to_batch": self.batch_id}


Scenario = ToOffset | ToDatetime | ShiftBy | ByDuration | ToBatch | FromFile

LITERAL_SCENARIOS: Mapping[str, Callable[[object], Scenario]] = {
    "to_offset": ToOffset.parse,
    "to_datetime": ToDatetime.parse,
    "shift_by": ShiftBy.parse,
    "by_duration": ByDuration.parse,
    "to_batch": ToBatch.parse,
}
"""Parameters of a reset whose value is the whole scenario, with their readers."""

SCENARIOS = (*LITERAL_SCENARIOS, "from_file")
"""Parameters of a reset, of which exactly one is given."""
