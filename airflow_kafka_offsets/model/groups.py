"""
Which partitions does a pipeline name, and which consumer group holds each of them?

The rule for all operators, sensors, triggers, methods and commands: **every name selects something.** ``topics`` is an
allow-list, so it may leave out topics and partitions, and with them whole groups. What it names has to be there, and to
have a group:

- ``topics`` names topics of what the offsets come from (a checkpoint's newest committed batch, given offsets, a window, a
  store). Without such a source of offsets it names topics of the broker. If ``group_id`` is a mapping, it has a key for each.
- A key of ``group_id`` is a topic or a source of what the offsets come from, even if ``topics`` leaves it out; and each of
  its topics that is not left out has a group. Without a source of offsets a key that is not left out is a topic of the broker.
- A number in ``topic:0,1`` is a partition of what the offsets come from, or of the broker where a sensor also waits for
  partitions that were added since.

Before its first batch a checkpoint names nothing: sensors wait, and what moves offsets is refused. Names that break the
rule are an error, see :func:`misnamed`; never a smaller selection, and never an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.offsets import (
    MAX_PARTITION,
    Offsets,
    TopicPartition,
    is_topic_name,
    load_json,
    repr_hint,
    summarize,
)
from airflow_kafka_offsets.model.text import shorten

GroupIds = str | Mapping[str, str]
"""A consumer group, or ``{topic: group}`` in which a key may also be ``"source:<index or name>"``."""

_PARTITION = re.compile(r"[0-9]{1,10}")
_TOPICS_FORM = "the name of a topic, 'topic:0,1' for some of its partitions, or a list of these"
_GROUPS_FORM = 'the name of a consumer group, or {"topic": "group"}'

SOURCE_PREFIX = "source:"
"""Marks a key of :data:`GroupIds` as a source of the query; ``:`` cannot be in a topic's name."""


@dataclass(frozen=True)
class TopicScope:
    """
    An allow-list of topics and partitions.

    :param partitions: topic -> its partitions, or ``None`` for all of them; ``None`` in place of the
        mapping for every topic there is.
    :param named_by: what names them, for error texts.
    """

    partitions: Mapping[str, frozenset[int] | None] | None = None
    named_by: str = field(default="topics", compare=False)

    @classmethod
    def parse(cls, value: object) -> TopicScope:
        """
        Read the ``topics`` parameter.

        :param value: ``None`` for everything; ``"orders"``, ``"orders:0,1"`` (Kafka's spelling), a list of
            these, or the list as JSON text, as a template gives it.
        :raises UsageError: if it is anything else, such as an empty text or list.
        """
        if value is None:
            return cls()
        if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            value = _load(value, "topics", _TOPICS_FORM)
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, Mapping):
            raise _bad_topics(value)
        partitions: dict[str, frozenset[int] | None] = {}
        for entry in entries:
            if not isinstance(entry, str):
                raise _bad_topics(entry)
            topic, colon, numbers = entry.strip().partition(":")
            cells = [cell.strip() for cell in numbers.split(",")]
            if not is_topic_name(topic) or (
                colon and not all(_PARTITION.fullmatch(cell) and int(cell) <= MAX_PARTITION for cell in cells)
            ):
                raise _bad_topics(entry)
            if not colon:
                partitions[topic] = None
            else:
                known = partitions.get(topic, frozenset())
                partitions[topic] = None if known is None else known | {int(cell) for cell in cells}
        if not partitions:
            raise UsageError(
                f"topics is empty: expected {_TOPICS_FORM}; leave it out for all topics of the checkpoint or the group"
            )
        return cls(partitions)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        if self.partitions is None:
            return True
        if topic_partition.topic not in self.partitions:
            return False
        allowed = self.partitions[topic_partition.topic]
        return allowed is None or topic_partition.partition in allowed

    def as_json(self) -> dict[str, list[int] | None] | None:
        """Return plain JSON: topic -> its partitions, ``None`` for all of them; ``None`` for every topic."""
        if self.partitions is None:
            return None
        return {
            topic: None if numbers is None else sorted(numbers)
            for topic, numbers in sorted(self.partitions.items())
        }

    @property
    def topics(self) -> list[str] | None:
        """The topics that are named, ``None`` for all."""
        return None if self.partitions is None else sorted(self.partitions)

    @property
    def numbered(self) -> list[TopicPartition]:
        """The partitions that are named by their numbers."""
        return sorted(
            TopicPartition(topic, number)
            for topic, numbers in (self.partitions or {}).items()
            for number in (numbers or ())
        )

    def allows(self, topic: str) -> bool:
        """Whether the topic, or a part of it, is in scope."""
        return self.partitions is None or topic in self.partitions

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> TopicScope:
        """Return the scope of exactly these partitions."""
        numbers: dict[str, set[int]] = {}
        for topic, number in partitions:
            numbers.setdefault(topic, set()).add(number)
        return cls({topic: frozenset(found) for topic, found in sorted(numbers.items())})

    def narrowed(self, topics: Iterable[str]) -> TopicScope:
        """Return the scope with none but these topics; whether any is left is for the caller to know."""
        names = set(topics)
        if self.partitions is None:
            return replace(self, partitions=dict.fromkeys(sorted(names)))
        kept = {topic: numbers for topic, numbers in self.partitions.items() if topic in names}
        return replace(self, partitions=kept)

    def on_broker(self, partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """
        Return the partitions in scope of the topics a broker has.

        :param partitions: topic -> its partitions on the broker. A partition that is named but not there is
            returned as well, so that whoever asks for it gets the broker's error.
        """
        found = {TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers}
        return sorted({tp for tp in found if tp in self}.union(self.numbered))


@dataclass(frozen=True)
class GroupOffsets:
    """
    What each group is to hold.

    :param by_group: group -> its offsets.
    :param left_out: partitions that the scope leaves out.
    """

    by_group: Mapping[str, Offsets]
    left_out: Sequence[TopicPartition] = field(default=())


def group_offsets(
    sources: Mapping[str, Offsets],
    group_id: GroupIds,
    scope: TopicScope | None = None,
    origin: str = "the checkpoint",
) -> GroupOffsets:
    """
    Give the offsets of a query's sources to their groups.

    :param sources: index or name of each Kafka source, and its offsets.
    :param group_id: see :data:`GroupIds`. A key for the source wins over one for the topic.
    :param scope: partitions outside are left out.
    :param origin: what the offsets come from, for the error text.
    :raises PlanRefusedError: if names select nothing, see :func:`misnamed`, or a partition would be held twice by one
        group.
    """
    scope = scope or TopicScope()
    by_group: dict[str, Offsets] = {}
    holder: dict[tuple[str, TopicPartition], str] = {}
    left_out: list[TopicPartition] = []
    twice: dict[tuple[str, str, str], list[TopicPartition]] = {}
    for source, offsets in sources.items():
        for topic_partition, offset in sorted(offsets.items()):
            group = _group_for(source, topic_partition.topic, group_id)[1]
            if topic_partition not in scope:
                left_out.append(topic_partition)
            elif group is None:
                continue  # see misnamed
            elif (group, topic_partition) in holder:
                twice.setdefault((group, holder[group, topic_partition], source), []).append(topic_partition)
            else:
                holder[group, topic_partition] = source
                by_group.setdefault(group, {})[topic_partition] = offset
    refusals = [
        f"{summarize(partitions)} occurs in source {first} and in source {second} of the query with different "
        f"positions, and group {group!r} can hold only one of them: give each source a group of its own, "
        f'group_id={{"{SOURCE_PREFIX}{first}": "...", "{SOURCE_PREFIX}{second}": "..."}}'
        for (group, first, second), partitions in twice.items()
    ]
    refusals += misnamed(group_id, scope, sources, origin, partitions=True)
    if refusals:
        raise PlanRefusedError(refusals)
    return GroupOffsets(by_group, tuple(left_out))


def source_offsets(
    sources: Mapping[str, Offsets], group_id: GroupIds, by_group: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """
    Give the offsets of groups back to the sources that they are of: the inverse of :func:`group_offsets`.

    :param sources: index or name of each Kafka source, and its offsets; only their partitions count.
    :param by_group: group -> offsets.
    :return: source -> offsets; without the partitions of which a group has none.
    """
    return {
        source: {
            tp: held[tp]
            for tp in offsets
            if tp in (held := by_group.get(_group_for(source, tp.topic, group_id)[1] or "", {}))
        }
        for source, offsets in sources.items()
    }


def group_scopes(
    group_id: GroupIds, scope: TopicScope, sources: Mapping[str, Offsets] | None = None
) -> dict[str, TopicScope]:
    """
    Say which partitions to look at in each group.

    Whether the broker has the topics and partitions that are named is for whoever asks it.

    :param group_id: see :data:`GroupIds`.
    :param scope: the topics that are allowed.
    :param sources: the Kafka sources of a checkpoint, where there is one: their topics are then the default.
    :raises UsageError: if names select nothing, see :func:`misnamed`; for a ``source:`` key without a checkpoint: sources
        are known only to it.
    """
    if sources is None and isinstance(group_id, str):
        return {group_id: scope}
    if sources is None and names_sources(group_id):
        key = next(key for key in group_id if key.startswith(SOURCE_PREFIX))
        raise UsageError(
            f"group_id names {key!r}, and sources are known only from a checkpoint: set checkpoint_location, or name topics"
        )
    if refusals := misnamed(group_id, scope, sources):
        raise UsageError("; ".join(refusals))
    topics: dict[str, set[str]] = {}
    for _, topic, group in _named(group_id, sources):
        if group is not None and scope.allows(topic):
            topics.setdefault(group, set()).add(topic)
    return {group: scope.narrowed(names) for group, names in topics.items()}


def names_of_window(
    group_id: GroupIds, scope: TopicScope, planned: Collection[TopicPartition], asked: Mapping[str, object]
) -> tuple[GroupIds, TopicScope, list[str]]:
    """
    Take out of the names what the plan of a window was asked for and has left out.

    That is, for example, a topic that nobody has committed. What the plan was not asked for stays among the names, and
    :func:`group_offsets` refuses it.

    :param planned: the partitions of the window.
    :param asked: the window's source: ``topics``, ``topics_pattern`` and ``group_id`` of the plan.
    :return: the names that are left, and those that were taken out.
    :raises PlanRefusedError: if none is left.
    """
    topics = {tp.topic for tp in planned}
    scope_asked = TopicScope.parse(asked.get("topics")).partitions or {}
    pattern, groups = asked.get("topics_pattern"), asked.get("group_id")

    def was_asked(topic: str) -> bool:
        return (
            topic in scope_asked
            or (isinstance(groups, Mapping) and topic in groups)
            or (isinstance(pattern, str) and re.fullmatch(pattern, topic) is not None)
        )

    without: list[str] = []
    left: dict[str, frozenset[int] | None] = {}
    for topic, numbers in (scope.partitions or {}).items():
        if numbers is None:
            if topic in topics or not was_asked(topic):
                left[topic] = None
            else:
                without.append(topic)
            continue
        named = scope_asked.get(topic) or frozenset()
        gone = {number for number in numbers & named if TopicPartition(topic, number) not in planned}
        without += [str(TopicPartition(topic, number)) for number in sorted(gone)]
        if kept := numbers - gone:
            left[topic] = kept
    if isinstance(group_id, Mapping):
        unused = [key for key in group_id if key not in topics and was_asked(key)]
        without += [key for key in unused if key not in without]
        group_id = {key: group for key, group in group_id.items() if key not in unused}
    if scope.partitions is not None and not left:
        raise PlanRefusedError(
            [
                f"topics names {', '.join(without)}, of which the window has nothing (it has {', '.join(sorted(topics))}): "
                "correct topics, or plan the window with them"
            ]
        )
    return group_id, scope if scope.partitions is None else replace(scope, partitions=left), without


def names_sources(group_id: GroupIds) -> bool:
    """Whether it names sources of a query, which are known only from a checkpoint."""
    return isinstance(group_id, Mapping) and any(key.startswith(SOURCE_PREFIX) for key in group_id)


def misnamed(
    group_id: GroupIds | None,
    scope: TopicScope,
    sources: Mapping[str, Offsets] | None,
    origin: str = "the checkpoint",
    *,
    partitions: bool = False,
) -> list[str]:
    """
    Say which names select nothing, or something that is not there: the rule of this module.

    :param group_id: see :data:`GroupIds`; ``None`` where no group is looked at.
    :param scope: the topics that are allowed.
    :param sources: index or name of each source that there is, and its offsets; ``None`` if nothing is known but the names.
    :param origin: what the offsets come from, for the text.
    :param partitions: whether a partition that is named has to be there too, since nobody asks the broker for it.
    :return: a sentence for each thing that is wrong: what was named, what there is, and what to do.
    """
    named = _named(group_id, sources)
    topics = sorted({topic for _, topic, _ in named})
    refusals = []
    missing = [topic for topic in scope.topics or () if topic not in topics]
    if sources is None:
        if missing and isinstance(group_id, Mapping):
            refusals.append(
                f"{scope.named_by} names {_quoted(missing)}, which no key of group_id is (it has "
                f"{', '.join(sorted(group_id))}): correct the name, or add a key for the topic"
            )
        return refusals
    query = origin == "the checkpoint"
    grouped = {topic for _, topic, group in named if group is not None}
    refusals += [
        f"topic {topic!r} of {f'source {source}' if query else origin} has no group in group_id: add a key for the topic"
        + (f' or for "{SOURCE_PREFIX}{source}"' if query else "")
        + ", or leave the topic out with topics="
        for source, topic, group in named
        if group_id is not None
        and group is None
        and scope.allows(topic)
        and (topic not in grouped or any(tp.topic == topic and tp in scope for tp in sources[source]))
    ]
    if isinstance(group_id, Mapping):
        used = {_group_for(source, topic, group_id)[0] for source, topic, _ in named}
        if unused := sorted(set(group_id) - used):
            refusals.append(
                f"group_id names {_quoted(unused)}, which {origin} does not have; it has sources {', '.join(sources)} with "
                f"topics {', '.join(topics)}"
            )
    later = ", or wait until the query has read from it" if query else ""
    if missing:
        refusals.append(
            f"{scope.named_by} names {_quoted(missing)}, which {origin} does not have (it has {', '.join(topics)}): correct "
            f"the name{later}"
        )
    if partitions:
        there = {tp for offsets in sources.values() for tp in offsets}
        absent = [tp for tp in scope.numbered if tp.topic in topics and tp not in there]
        if absent:
            same = summarize(tp for tp in there if tp.topic == absent[0].topic)
            refusals.append(
                f"{scope.named_by} names {summarize(absent)}, which {origin} does not have (it has {same}): correct the "
                f"number{later}"
            )
    return refusals


def parse_group_id(value: object) -> GroupIds:
    """
    Read the ``group_id`` parameter, which a template may have turned into JSON text.

    :raises UsageError: if it is neither a name nor a mapping of names, or a name is one that
        :func:`~airflow_kafka_offsets.model.names.check_group` refuses. ``"None"`` is none: it is what a template writes that
        finds nothing.
    """
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("{") or (text.startswith("[") and text.endswith("]")):
        value = _load(text, "group_id", _GROUPS_FORM)
    if isinstance(value, str) and value.strip() not in ("", "None"):
        return check_group(value)
    if isinstance(value, Mapping) and value and all(key and isinstance(key, str) for key in value):
        groups = dict(value)
        if all(isinstance(group, str) and group.strip() != "None" for group in groups.values()):
            return {
                key: check_group(group, f"group_id[{shorten(repr(key))}]") for key, group in groups.items()
            }
    raise UsageError(f"group_id: found {shorten(value)}; expected {_GROUPS_FORM}")


def _group_for(source: str, topic: str, group_id: GroupIds) -> tuple[str, str | None]:
    if isinstance(group_id, str):
        return "", group_id
    by_source = f"{SOURCE_PREFIX}{source}"
    key = by_source if by_source in group_id else topic
    return key, group_id.get(key)


def _named(
    group_id: GroupIds | None, sources: Mapping[str, Offsets] | None
) -> list[tuple[str, str, str | None]]:
    """Return each topic of each source with its group; without sources the topics that have a key."""
    if sources is not None:
        return [
            (source, topic, None if group_id is None else _group_for(source, topic, group_id)[1])
            for source, offsets in sources.items()
            for topic in sorted({topic_partition.topic for topic_partition in offsets})
        ]
    return [("", key, group) for key, group in group_id.items()] if isinstance(group_id, Mapping) else []


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _load(text: str, parameter: str, expected: str) -> object:
    try:
        return load_json(text, parameter, expected)
    except OffsetsFormatError as error:
        raise UsageError(str(error)) from None


def _bad_topics(value: object) -> UsageError:
    return UsageError(f"topics: found {shorten(value)}; expected {_TOPICS_FORM}{repr_hint(value)}")
