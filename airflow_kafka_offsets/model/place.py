"""
Places in a log: what a reset, a window's bound or the target of a wait names before the broker is asked.

Those of a reset are the scenarios of ``kafka-consumer-groups --reset-offsets`` (Apache Kafka,
``ConsumerGroupCommand.prepareOffsetsToReset``), and some more. Offsets that Kafka's tool clamps silently are
left as asked here, and decided by the plan's policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.formats import offsets_text, parse_offsets
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.offsets_file import OffsetsFile
from airflow_kafka_offsets.model.parameters import parse_duration, parse_text, parse_time, time_example
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text, unexpected

PlaceKind = Literal[
    "earliest",
    "latest",
    "committed",
    "offset",
    "offsets",
    "time",
    "ago",
    "shift",
    "batch",
    "file",
    "group",
]
Value = int | str | datetime | timedelta | Mapping[TopicPartition, "int | None"] | OffsetsFile | None


@dataclass(frozen=True)
class Place:
    """
    A place in the log of each partition.

    :param kind: one of those in the table below. Kafka's tool calls ``committed`` the current offset.
    :param value: its number, time, duration, offsets, file or group; ``None`` for what needs none. Offsets
        have ``None`` for a partition that ``on_no_commit`` decides.
    """

    kind: PlaceKind
    value: Value = None

    @classmethod
    def parse(cls, value: object, parameter: str) -> Place:
        """
        Read one of the :data:`PARAMETERS`. A file is only named: it is read later.

        :raises UsageError: if the value is nothing that the parameter takes.
        :raises OffsetsFormatError: if it is a mapping or JSON, and not offsets in Spark's form.
        """
        # A template may leave a line break at its end.
        text = value.strip() if isinstance(value, str) else value
        kinds = PARAMETERS[parameter].kinds
        if len(kinds) == 1:
            return cls(kinds[0], _KINDS[kinds[0]].read(text, parameter))
        # No text is read by two of one parameter's kinds, so that their order decides nothing but the
        # error.
        for kind in kinds:
            with suppress(UsageError):
                return cls(kind, _KINDS[kind].read(text, parameter))
        *others, last = (_KINDS[kind].expected or time_example() for kind in kinds)
        raise unexpected(parameter, value, f"{', '.join(others)}, or {last}")

    @property
    def relative(self) -> bool:
        """Whether applying it twice moves further than applying it once, so that a retry must not."""
        return _KINDS[self.kind].relative

    @property
    def starts_from_commits(self) -> bool:
        """Whether it starts from the group's own commits."""
        return _KINDS[self.kind].commits == "own"

    def uses_on_no_commit(self, *, with_checkpoint: bool) -> bool:
        """Whether ``on_no_commit`` decides about a partition without a commit: a checkpoint may do so too."""
        return _KINDS[self.kind].uses_on_no_commit(with_checkpoint)

    @property
    def reproducible(self) -> bool:
        """Whether a run that is cleared gets the same records."""
        return _KINDS[self.kind].reproducible

    @property
    def names_partitions(self) -> bool:
        """Whether it says by itself which partitions it is of."""
        return _KINDS[self.kind].names_partitions

    @property
    def time(self) -> datetime | None:
        """The time, if it is one."""
        return self.value if isinstance(self.value, datetime) else None

    @property
    def offsets(self) -> Mapping[TopicPartition, int | None] | None:
        """The offset of each partition, if it has them."""
        return self.value if isinstance(self.value, Mapping) else None

    @property
    def batch_id(self) -> int | None:
        """
        The batch of a Spark checkpoint whose end it is: where the next one begins, as ``offsets/N`` says.

        It is absolute. A move rewrites the newest batch's file and no other, and Spark's ids go on, so a
        batch keeps its offsets, with two exceptions: the end of a batch that a move has rewritten is where
        that move led (what it was before is in the move's archive), and batches that were truncated are
        planned again under their ids, with other ends.
        """
        return self.value if self.kind == "batch" and isinstance(self.value, int) else None

    @property
    def group_id(self) -> str | None:
        """The other group of the cluster whose commits it is."""
        return self.value if isinstance(self.value, str) else None

    def with_duration_resolved(self, now: datetime) -> Place:
        """Return the time that a duration before now is; other places as they are."""
        return Place("time", now - self.value) if isinstance(self.value, timedelta) else self

    def as_json(self) -> dict[str, object]:
        """Return the parameter of a reset and its value as plain JSON, for the receipt."""
        value = self.value if isinstance(self.value, int) else str(self)
        return {_KINDS[self.kind].parameter: value}

    def __str__(self) -> str:
        return "offsets" if self.kind == "offsets" else self.as_text()

    def as_text(self) -> str:
        """Return text that parses to the same place."""
        match self.value:
            case None:
                return self.kind
            case datetime():
                return self.value.isoformat()
            case timedelta():
                return f"PT{f'{self.value.total_seconds():.6f}'.rstrip('0').rstrip('.')}S"
            case OffsetsFile():
                return self.value.name
            case int() | str():
                return str(self.value)
        return offsets_text(self.value)

    def offsets_for_group(self, group_id: str, scope: TopicScope, groups: int) -> Offsets | None:
        """
        Return the offsets that the place names for a group by itself, ``None`` if it has none.

        :param groups: number of groups that are moved: given offsets are then those of all of them.
        :raises OffsetsFormatError: if the scope leaves a partition out that is named.
        """
        if isinstance(self.value, OffsetsFile):
            offsets = self.value.group_offsets(group_id, groups)
        elif self.offsets is None:
            return None
        else:
            named = {tp: offset for tp, offset in self.offsets.items() if offset is not None}
            # For one group all that is named has to be in its scope, else a name would be dropped silently;
            # several share one mapping.
            offsets = named if groups == 1 else {tp: at for tp, at in named.items() if tp in scope}
        _check_named(offsets, [scope])
        return offsets

    def refuse_unused_offsets(self, scopes: Collection[TopicScope]) -> None:
        """Refuse offsets for a partition that none of several groups is moved on."""
        _check_named(self.offsets or (), scopes)

    def offsets_in_logs(self, starts: Offsets, logs: Logs) -> Offsets:
        """
        Return the offset meant for each partition, where no time has to be looked up.

        :param starts: where each partition starts from; more than the partitions counts only for what starts
            from commits, and for offsets without one of a partition.
        """
        match self.kind, self.value:
            case "earliest", _:
                return {tp: logs[tp].start for tp in starts}
            case "latest", _:
                return {tp: logs[tp].end for tp in starts}
            case "offset", int(number):
                return dict.fromkeys(starts, number)
            case "shift", int(by):
                # An offset below 0 cannot be written down; it is below every log start, and so out of range,
                # all the same.
                return {tp: offset + by for tp, offset in starts.items()}
            case "committed", _:
                return starts
        if self.offsets is None:
            raise UsageError(f"{self.kind} {self} is not resolved to offsets yet")
        known = self.offsets
        return {tp: start if (at := known.get(tp)) is None else at for tp, start in starts.items()}


def _check_named(named: Collection[TopicPartition], scopes: Collection[TopicScope]) -> None:
    if outside := [tp for tp in named if not any(tp in scope for scope in scopes)]:
        raise OffsetsFormatError(
            f"the offsets name {summarize(outside)}, which {parameter_text('topics')} and "
            f"{parameter_text('group_id')} leave out: name them in both or in neither"
        )


class _Kind(NamedTuple):
    """
    What is known of a kind of place.

    :param read: reads the value from what a parameter was given, and the parameter's name.
    :param parameter: that of a reset.
    :param expected: names it in the error of a parameter that takes several kinds; empty for a time.
    :param commits: whose commits it starts from.
    """

    read: Callable[[object, str], Value]
    parameter: str
    expected: str = ""
    relative: bool = False
    commits: Literal["own", "other", None] = None
    reproducible: bool = False
    names_partitions: bool = False

    def uses_on_no_commit(self, with_checkpoint: bool) -> bool:
        return self.commits == "other" or (self.commits == "own" and not with_checkpoint)


def _word(word: str, *, relative: bool = False, commits: Literal["own", None] = None) -> _Kind:
    def read(value: object, parameter: str) -> None:
        if value != word:
            raise unexpected(parameter, value, repr(word))

    return _Kind(read, "to_offset", repr(word), relative, commits)


def _number(least: int, expected: str) -> Callable[[object, str], int]:
    def read(value: object, parameter: str) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,19}", value) else value
        # A bool is an int in Python, and True is no offset.
        if isinstance(number, int) and not isinstance(number, bool) and least <= number <= MAX_OFFSET:
            return number
        raise unexpected(parameter, value, expected)

    return read


def _read_offsets(value: object, parameter: str) -> Offsets:
    if isinstance(value, Mapping) or (isinstance(value, str) and value.startswith("{")):
        return parse_offsets(value, parameter_text(parameter))
    raise unexpected(parameter, value, "offsets")


def _read_ago(value: object, parameter: str) -> timedelta:
    duration = parse_duration(value, parameter)
    if duration is None:
        raise parameter_error(parameter, " is missing: expected a duration such as 'PT1H'")
    return duration


def _name_file(value: object, parameter: str) -> OffsetsFile:
    name = parse_text(value, parameter)
    check_location(name, parameter, None)
    return OffsetsFile(name)


_KINDS: Mapping[str, _Kind] = {
    "earliest": _word("earliest"),
    "latest": _word("latest", relative=True),
    "committed": _word("committed", commits="own"),
    "offset": _Kind(_number(0, "a whole number from 0"), "to_offset", "a whole number from 0"),
    "offsets": _Kind(
        _read_offsets,
        "to_offset",
        'offsets as {"topic": {"0": 42}}',
        reproducible=True,
        names_partitions=True,
    ),
    "time": _Kind(parse_time, "to_datetime", reproducible=True),
    "ago": _Kind(_read_ago, "by_duration", relative=True),
    "shift": _Kind(
        _number(-MAX_OFFSET, "a whole number of offsets, such as -100"),
        "shift_by",
        relative=True,
        commits="own",
    ),
    "batch": _Kind(_number(0, "0 or more, as the whole number of a batch"), "to_batch"),
    "file": _Kind(_name_file, "from_file", names_partitions=True),
    "group": _Kind(parse_group, "to_group", relative=True, commits="other", names_partitions=True),
}


class PlaceParameter(NamedTuple):
    """A parameter that takes a place."""

    kinds: Sequence[PlaceKind]
    """What it takes, in the order in which an error names it."""
    metavar: str = ""
    """The value of its option, where it is a parameter of a reset."""
    text: str = ""
    """The option's help."""

    def may_use_on_no_commit(self, *, with_checkpoint: bool) -> bool:
        """Whether a value that is not known yet may, see :meth:`Place.uses_on_no_commit`."""
        return any(_KINDS[kind].uses_on_no_commit(with_checkpoint) for kind in self.kinds)


RESETS: Mapping[str, PlaceParameter] = {
    "to_offset": PlaceParameter(
        ("offset", "earliest", "latest", "committed", "offsets"),
        "N",
        "To one offset for every partition, or Spark's JSON.",
    ),
    "to_datetime": PlaceParameter(("time",), "TIME", "To a time in ISO 8601; UTC without a zone."),
    "shift_by": PlaceParameter(("shift",), "N", "By this many offsets; negative for back."),
    "by_duration": PlaceParameter(("ago",), "DURATION", "To a time ago, such as 2h."),
    "to_batch": PlaceParameter(("batch",), "N", "To the end of a batch of the checkpoint that is moved."),
    "to_group": PlaceParameter(("group",), "GROUP", "To the offsets that another group has committed."),
    "from_file": PlaceParameter(("file",), "FILE", "To Kafka's CSV: [group,]topic,partition,offset lines."),
}
"""Parameters of a reset, of which exactly one is given, and options of the command line."""

PARAMETERS: Mapping[str, PlaceParameter] = {
    **RESETS,
    "start": PlaceParameter(("committed", "earliest", "time", "offsets")),
    "end": PlaceParameter(("latest", "time", "offsets")),
    "target": PlaceParameter(("latest", "time", "offsets")),
}
"""All parameters that take a place."""
