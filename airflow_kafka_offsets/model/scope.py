"""Which partitions does a pipeline name, and which consumer group holds each of them?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.offsets import (
    MAX_PARTITION,
    Offsets,
    TopicPartition,
    is_topic_name,
    load_json,
    summarize,
)
from airflow_kafka_offsets.model.text import shorten

GroupIds = str | Mapping[str, str]
"""A consumer group, or ``{topic: group}`` in which a key may also be ``"source:<index or name>"``."""

_PARTITION = re.compile(r"[0-9]{1,10}")

SOURCE_PREFIX = "source:"
"""Marks a key of :data:`GroupIds` as a source of the query; ``:`` cannot be in a topic's name."""


@dataclass(frozen=True)
class TopicScope:
    """
    An allow-list of topics and partitions.

    :param partitions: topic -> its partitions, or ``None`` for all of them; ``None`` in place of the
        mapping for every topic there is.
    """

    partitions: Mapping[str, frozenset[int] | None] | None = None

    @classmethod
    def parse(cls, value: object) -> TopicScope:
        """
        Read the ``topics`` parameter.

        :param value: ``None`` or empty for everything; ``"orders"``, ``"orders:0,1"`` (Kafka's spelling),
            a list of these, or the list as JSON text, as a template gives it.
        :raises UsageError: if it is anything else.
        """
        if isinstance(value, str) and value.strip().startswith("["):
            value = load_json(value, "topics")
        if value is None or value in ("", "None"):
            return cls()
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
        return cls(partitions or None)

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

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> TopicScope:
        """Return the scope of exactly these partitions."""
        numbers: dict[str, set[int]] = {}
        for topic, number in partitions:
            numbers.setdefault(topic, set()).add(number)
        return cls({topic: frozenset(found) for topic, found in sorted(numbers.items())})

    def narrowed(self, topics: Iterable[str]) -> TopicScope:
        """Return the scope with none but these topics."""
        names = set(topics)
        if self.partitions is None:
            return TopicScope(dict.fromkeys(sorted(names)))
        return TopicScope({topic: numbers for topic, numbers in self.partitions.items() if topic in names})

    def on_broker(self, partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """
        Return the partitions in scope of the topics a broker has.

        :param partitions: topic -> its partitions on the broker. A partition that is named but not there is
            returned as well, so that whoever asks for it gets the broker's error.
        """
        found = {TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers}
        named = {
            TopicPartition(topic, number)
            for topic, numbers in (self.partitions or {}).items()
            for number in (numbers or ())
        }
        return sorted({tp for tp in found if tp in self} | named)


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
    :raises PlanRefusedError: if a topic has no group, a key names nothing, or a partition would be held
        twice by one group.
    """
    scope = scope or TopicScope()
    by_group: dict[str, Offsets] = {}
    holder: dict[tuple[str, TopicPartition], str] = {}
    left_out: list[TopicPartition] = []
    without_group: dict[str, str] = {}
    twice: dict[tuple[str, str, str], list[TopicPartition]] = {}
    unused = set(group_id) if isinstance(group_id, Mapping) else set()
    for source, offsets in sources.items():
        for topic_partition, offset in sorted(offsets.items()):
            key, group = _group_for(source, topic_partition.topic, group_id)
            unused.discard(key)
            if topic_partition not in scope:
                left_out.append(topic_partition)
            elif group is None:
                without_group[topic_partition.topic] = source
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
    refusals += [
        f"topic {topic!r} of source {source} has no group in group_id: add a key for the topic or for "
        f'"{SOURCE_PREFIX}{source}", or leave the topic out with topics='
        for topic, source in without_group.items()
    ]
    if unused:
        topics = sorted(
            {topic_partition.topic for offsets in sources.values() for topic_partition in offsets}
        )
        refusals.append(
            f"group_id names {', '.join(map(repr, sorted(unused)))}, which {origin} does not have; it has "
            f"sources {', '.join(sources)} with topics {', '.join(topics)}"
        )
    missing = [
        topic
        for topic in scope.topics or ()
        if not any(
            topic_partition.topic == topic for offsets in sources.values() for topic_partition in offsets
        )
    ]
    if missing:
        refusals.append(
            f"topics names {', '.join(map(repr, missing))}, which {origin} does not have: correct the name, or "
            "wait until the query has read from it"
        )
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

    :param group_id: see :data:`GroupIds`.
    :param scope: the topics that are allowed.
    :param sources: the Kafka sources of a checkpoint, where there is one: their topics are then the default.
    :raises UsageError: for a ``source:`` key without a checkpoint: sources are known only to it.
    """
    topics: dict[str, list[str]] = {}
    if sources is not None:
        for source, offsets in sources.items():
            for topic in sorted({topic_partition.topic for topic_partition in offsets}):
                _, group = _group_for(source, topic, group_id)
                if group is not None:
                    topics.setdefault(group, []).append(topic)
    elif isinstance(group_id, str):
        return {group_id: scope}
    else:
        for key, group in group_id.items():
            if key.startswith(SOURCE_PREFIX):
                raise UsageError(
                    f"group_id names {key!r}, and sources are known only from a checkpoint: set checkpoint_location, "
                    "or name topics"
                )
            topics.setdefault(group, []).append(key)
    return {group: scope.narrowed(names) for group, names in topics.items()}


def parse_group_id(value: object) -> GroupIds:
    """
    Read the ``group_id`` parameter, which a template may have turned into JSON text.

    :raises UsageError: if it is neither a name nor a mapping of names, or a name is one that
        :func:`~airflow_kafka_offsets.model.names.check_group` refuses.
    """
    if isinstance(value, str) and value.strip().startswith("{"):
        value = load_json(value, "group_id")
    if isinstance(value, str) and value.strip():
        return check_group(value)
    if (
        isinstance(value, Mapping)
        and value
        and all(isinstance(cell, str) and cell for pair in value.items() for cell in pair)
    ):
        return {key: check_group(group, f"group_id[{shorten(repr(key))}]") for key, group in value.items()}
    raise UsageError(
        f'group_id: found {shorten(value)}; expected the name of a consumer group, or {{"topic": "group"}}'
    )


def _group_for(source: str, topic: str, group_id: GroupIds) -> tuple[str, str | None]:
    if isinstance(group_id, str):
        return "", group_id
    by_source = f"{SOURCE_PREFIX}{source}"
    key = by_source if by_source in group_id else topic
    return key, group_id.get(key)


def _bad_topics(value: object) -> UsageError:
    return UsageError(
        f"topics: found {shorten(value)}; expected the name of a topic, 'topic:0,1' for some of its partitions, "
        "or a list of these"
    )
