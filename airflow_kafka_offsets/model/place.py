"""
Places in a log: the target of a reset, the bound of a window or the target of a wait, before it is resolved.

A reset supports the scenarios of ``kafka-consumer-groups --reset-offsets`` (Apache Kafka,
``ConsumerGroupCommand.prepareOffsetsToReset``), and some more. Kafka's tool clamps offsets outside the log
silently; here they are kept, and the plan's policy decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.formats import OffsetsFile, offsets_text, parse_offsets
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import parse_duration, parse_text, parse_time, time_example
from airflow_kafka_offsets.model.text import is_int
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text, unexpected

PlaceKind = Literal[
    "earliest", "latest", "committed", "offset", "offsets", "time", "ago", "shift", "batch", "file", "group"
]
Value = int | str | datetime | timedelta | Mapping[TopicPartition, "int | None"] | OffsetsFile | None


@dataclass(frozen=True)
class Place:
    """
    A place in the log of each partition.

    :param kind: the kind of the place. Kafka's tool calls ``committed`` the current offset.
    :param value: the number, time, duration, offsets, file or group; ``None`` for a kind without a value.
        Offsets have ``None`` for a partition for which ``on_no_commit`` decides.
    """

    kind: PlaceKind
    value: Value = None

    @classmethod
    def parse(cls, value: object, parameter: str) -> Place:
        """
        Parse one of the :data:`PARAMETERS`. A file is not read yet.

        :raises UsageError: if the parameter does not accept the value.
        :raises OffsetsFormatError: if the value is a mapping or JSON, but not offsets in Spark's form.
        """
        # A template may add a line break at the end.
        text = value.strip() if isinstance(value, str) else value
        kinds = PARAMETERS[parameter].kinds
        if len(kinds) == 1:
            return cls(kinds[0], _KINDS[kinds[0]].read(text, parameter))
        # No two kinds of a parameter accept the same text, so their order matters only for the error text.
        for kind in kinds:
            with suppress(UsageError):
                return cls(kind, _KINDS[kind].read(text, parameter))
        *others, last = (_KINDS[kind].expected or time_example() for kind in kinds)
        raise unexpected(parameter, value, f"{', '.join(others)}, or {last}")

    @property
    def traits(self) -> Traits:
        """The properties that all places of this kind have."""
        return _KINDS[self.kind]

    @property
    def time(self) -> datetime | None:
        """The time, if the place is a time."""
        return self.value if isinstance(self.value, datetime) else None

    @property
    def offsets(self) -> Mapping[TopicPartition, int | None] | None:
        """The offset of each partition, if the place has offsets."""
        return self.value if isinstance(self.value, Mapping) else None

    @property
    def batch_id(self) -> int | None:
        """
        The batch of a Spark checkpoint whose end is the place: the start of the next batch, from
        ``offsets/N``.

        Only two moves change the end of a batch: one that rewrites the newest batch's file, and a truncation,
        after which Spark plans the batch again under the same id.
        """
        return self.value if self.kind == "batch" and isinstance(self.value, int) else None

    @property
    def group_id(self) -> str | None:
        """The other group of the cluster whose commits are the place."""
        return self.value if isinstance(self.value, str) else None

    def with_duration_resolved(self, now: datetime) -> Place:
        """Return a duration before now as a time; other places unchanged."""
        return Place("time", now - self.value) if isinstance(self.value, timedelta) else self

    def as_json(self) -> dict[str, object]:
        """Return the reset's parameter and its value as plain JSON, for the receipt."""
        value = self.value if isinstance(self.value, int) else str(self)
        return {name: value for name, reset in RESETS.items() if self.kind in reset.kinds}

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
        Return the offsets that the place itself has for a group; ``None`` if it has none.

        :param groups: number of groups that are moved; given offsets are shared by all of them.
        :raises OffsetsFormatError: if the scope leaves out a named partition.
        """
        if isinstance(self.value, OffsetsFile):
            offsets = self.value.group_offsets(group_id, groups)
        elif self.offsets is None:
            return None
        else:
            named = {tp: offset for tp, offset in self.offsets.items() if offset is not None}
            # With one group, a name outside its scope is an error. Several groups share one mapping.
            offsets = named if groups == 1 else {tp: at for tp, at in named.items() if tp in scope}
        _check_named(offsets, [scope])
        return offsets

    def refuse_unused_offsets(self, scopes: Collection[TopicScope]) -> None:
        """Refuse offsets for a partition that is in no group's scope."""
        _check_named(self.offsets or (), scopes)

    def offsets_in_logs(self, starts: Offsets, logs: Logs) -> Offsets:
        """
        Return the offset of the place in each partition, for places that need no lookup by time.

        :param starts: used by places that are relative to commits, and where the place has no offset.
        """
        match self.kind, self.value:
            case "earliest", _:
                return {tp: logs[tp].start for tp in starts}
            case "latest", _:
                return {tp: logs[tp].end for tp in starts}
            case "offset", int(number):
                return dict.fromkeys(starts, number)
            case "shift", int(by):
                # Below 0 is below every log start: kept, for the out-of-range policy.
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
            f"the offsets name {summarize(outside)}, but {parameter_text('topics')} and "
            f"{parameter_text('group_id')} leave them out: name these partitions in both or in neither"
        )


class Traits(NamedTuple):
    """
    The properties of a kind of place.

    :param read: parses the value; its arguments are the parameter's value and name.
    :param expected: the kind in the error text of a parameter with several kinds; empty for a time.
    :param relative: whether a second reset to the place may end elsewhere; a retry must then not repeat it.
    :param commits: the commits that the place is relative to: the group's own, or those of another group.
    :param reproducible: whether a cleared run reads the same records again.
    :param names_partitions: whether the place itself names its partitions.
    """

    read: Callable[[object, str], Value]
    expected: str = ""
    relative: bool = False
    commits: Literal["own", "other", None] = None
    reproducible: bool = False
    names_partitions: bool = False

    @property
    def starts_from_commits(self) -> bool:
        """Whether the place is relative to the group's own commits."""
        return self.commits == "own"

    def uses_on_no_commit(self, *, with_checkpoint: bool) -> bool:
        """Whether ``on_no_commit`` decides for a partition without a commit; a checkpoint may do so."""
        return self.commits == "other" or (self.commits == "own" and not with_checkpoint)


def _word(word: str, *, relative: bool = False, commits: Literal["own", None] = None) -> Traits:
    def read(value: object, parameter: str) -> None:
        if value != word:
            raise unexpected(parameter, value, repr(word))

    return Traits(read, repr(word), relative, commits)


def _number(least: int, expected: str) -> Callable[[object, str], int]:
    def read(value: object, parameter: str) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,19}", value) else value
        if is_int(number, least):
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


_KINDS: Mapping[PlaceKind, Traits] = {
    "earliest": _word("earliest"),
    "latest": _word("latest", relative=True),
    "committed": _word("committed", commits="own"),
    "offset": Traits(_number(0, "a whole number from 0"), "a whole number from 0"),
    "offsets": Traits(
        _read_offsets, 'offsets as {"topic": {"0": 42}}', reproducible=True, names_partitions=True
    ),
    "time": Traits(parse_time, reproducible=True),
    "ago": Traits(_read_ago, relative=True),
    "shift": Traits(
        _number(-MAX_OFFSET, "a whole number of offsets, such as -100"), relative=True, commits="own"
    ),
    "batch": Traits(_number(0, "0 or more, as the whole number of a batch")),
    "file": Traits(_name_file, names_partitions=True),
    "group": Traits(parse_group, relative=True, commits="other", names_partitions=True),
}


class PlaceParameter(NamedTuple):
    """A parameter that accepts a place."""

    kinds: Sequence[PlaceKind]
    """The accepted kinds, in the order of the error text."""
    metavar: str = ""
    """Metavar of the command-line option, for a parameter of a reset."""
    text: str = ""
    """Help text of the command-line option."""

    def may_use_on_no_commit(self, *, with_checkpoint: bool) -> bool:
        """Whether a value of the parameter may use ``on_no_commit``, see :meth:`Traits.uses_on_no_commit`."""
        return any(_KINDS[kind].uses_on_no_commit(with_checkpoint=with_checkpoint) for kind in self.kinds)


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
"""Parameters of a reset, and its command-line options; exactly one must be given."""

PARAMETERS: Mapping[str, PlaceParameter] = {
    **RESETS,
    "start": PlaceParameter(("committed", "earliest", "time", "offsets")),
    "end": PlaceParameter(("latest", "time", "offsets")),
    "target": PlaceParameter(("latest", "time", "offsets")),
}
