"""
Consumer groups of a pipeline: which partition belongs to which group.

The rule everywhere: **every name must match something.** ``topics`` may leave out topics and partitions, and
with them whole groups. Every topic, partition and source that ``topics`` or ``group_id`` names must occur in
the origin of the offsets (a checkpoint's newest committed batch, given offsets, a window, a store), or else
on the broker. Every topic that is not left out must have a group. A name that breaks the rule is an error,
see :meth:`GroupSelection.unmatched_names`. It never makes the selection smaller or empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.errors import MisnamedError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import is_blank, parse_pattern
from airflow_kafka_offsets.model.text import join_first, quote, shorten
from airflow_kafka_offsets.model.topics import TopicScope, load_names
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text

GroupIds = str | Mapping[str, str]
"""A consumer group, or ``{topic: group}``; a key may also be ``"source:<index or name>"``."""

Sources = Mapping[str, Offsets]
"""Index or name of each Kafka source of a query -> its offsets."""

SOURCE_PREFIX = "source:"
"""Marks a key of :data:`GroupIds` as a source of the query; ``:`` cannot be in a topic's name."""

CHECKPOINT = "the checkpoint"
_FORM = 'the name of a consumer group, or {"topic": "group"}'


@dataclass(frozen=True)
class GroupSelection:
    """The groups and topics that a pipeline names; ``group_id`` is ``None`` if it names only topics."""

    group_id: GroupIds | None = None
    scope: TopicScope = field(default_factory=TopicScope)

    @classmethod
    def parse(cls, group_id: object, topics: object = None, *, required: bool = True) -> GroupSelection:
        """
        Read the parameters ``group_id`` and ``topics``; a template may have turned each of them into JSON
        text.

        :raises UsageError: if ``group_id`` is neither a name nor a mapping of names, if
            :func:`~airflow_kafka_offsets.model.names.parse_group` refuses a name, or if ``topics`` is
            invalid. The texts ``"None"`` and ``"null"`` are refused, because a template renders them for a
            missing value.
        """
        ids = None if group_id is None and not required else parse_group_id(group_id)
        return cls(ids, TopicScope.parse(topics))

    @property
    def group_ids(self) -> list[str]:
        """The names of the groups, in order."""
        return [self.group_id] if isinstance(self.group_id, str) else sorted(set(self._mapping.values()))

    def with_scope(self, scope: TopicScope) -> GroupSelection:
        """Return the same groups, limited to another scope."""
        return replace(self, scope=scope)

    @property
    def names_sources(self) -> bool:
        """Whether ``group_id`` names sources of a query; sources are known only from a checkpoint."""
        return any(key.startswith(SOURCE_PREFIX) for key in self._mapping)

    @property
    def _mapping(self) -> Mapping[str, str]:
        return self.group_id if isinstance(self.group_id, Mapping) else {}

    def assign_offsets(self, sources: Sources, origin: str = CHECKPOINT) -> dict[str, Offsets]:
        """
        Return the offsets of sources for each group, without partitions outside the scope.

        A key of ``group_id`` for the source wins over one for the topic.

        :raises MisnamedError: if names match nothing, see :meth:`unmatched_names`.
        :raises PlanRefusedError: if one group would get a partition from two sources.
        """
        by_group: dict[str, Offsets] = {}
        holder: dict[tuple[str, TopicPartition], str] = {}
        twice: dict[tuple[str, str, str], list[TopicPartition]] = {}
        # All refusals are collected first, so that one run reports every mistake of a pipeline.
        for source, offsets in sources.items():
            for tp, offset in sorted(offsets.items()):
                group = self.group_of(source, tp.topic)
                if tp not in self.scope or group is None:  # refused below
                    continue
                if (group, tp) in holder:
                    twice.setdefault((group, holder[group, tp], source), []).append(tp)
                else:
                    holder[group, tp] = source
                    by_group.setdefault(group, {})[tp] = offset
        refusals = [
            f"{summarize(partitions)} occurs in source {first} and in source {second} of the query, each "
            f"with its own position, and group {quote(group)} holds one position per partition: give "
            f"each source its own group, {parameter_text('group_id')} as "
            f'{{"{SOURCE_PREFIX}{first}": "...", "{SOURCE_PREFIX}{second}": "..."}}'
            for (group, first, second), partitions in twice.items()
        ]
        if misnamed := self.unmatched_names(sources, origin, partitions=True):
            raise MisnamedError([*refusals, *misnamed])
        PlanRefusedError.raise_if(refusals)
        return by_group

    def to_sources(self, sources: Sources, by_group: Mapping[str, Offsets]) -> dict[str, Offsets]:
        """Assign the offsets of groups to their sources: the inverse of :meth:`assign_offsets`."""
        return {
            source: {
                tp: known[tp]
                for tp in offsets
                if tp in (known := by_group.get(self.group_of(source, tp.topic) or "", {}))
            }
            for source, offsets in sources.items()
        }

    def scopes(self, sources: Sources | None = None) -> dict[str, TopicScope]:
        """
        Return the partitions to read in each group, without checking that the broker has them.

        :param sources: sources of the checkpoint, if there is one; their topics are then the default.
        :raises UsageError: if names match nothing, or for a ``source:`` key without a checkpoint.
        """
        # One group and no checkpoint: names cannot contradict each other, and topics come from the broker.
        if sources is None and isinstance(self.group_id, str):
            return {self.group_id: self.scope}
        if sources is None and self.names_sources:
            key = next(key for key in self._mapping if key.startswith(SOURCE_PREFIX))
            raise parameter_error(
                "group_id",
                f" names {quote(key)}, but sources are known only from a checkpoint: give "
                f"{parameter_text('checkpoint_location')}, or name {parameter_text('topics')}",
            )
        UsageError.raise_if(self.unmatched_names(sources))
        topics: dict[str, set[str]] = {}
        for _, topic, group in self._grouped_topics(sources):
            if group is not None and self.scope.allows(topic):
                topics.setdefault(group, set()).add(topic)
        return {group: self.scope.restricted_to(names) for group, names in topics.items()}

    def restricted_to_window(
        self, planned: Collection[TopicPartition], asked: Mapping[str, object]
    ) -> tuple[GroupSelection, list[str]]:
        """
        Remove the names of topics without commits: the plan of the window has named and skipped them.

        A name that the plan did not have is kept, and :meth:`assign_offsets` refuses it.

        :param planned: the partitions of the window.
        :param asked: the names in the plan: ``topics``, ``topics_pattern`` and ``group_id``.
        :return: the remaining selection, and the removed names.
        :raises PlanRefusedError: if no name remains.
        """
        topics = {tp.topic for tp in planned}
        scope_asked = TopicScope.parse(asked.get("topics")).partitions or {}
        groups, asked_for = asked.get("group_id"), asked.get("topics_pattern")
        pattern = parse_pattern(asked_for, "topics_pattern") if isinstance(asked_for, str) else None

        def is_left_out(topic: str) -> bool:
            return topic not in topics and (
                topic in scope_asked
                or (isinstance(groups, Mapping) and topic in groups)
                or (pattern is not None and pattern.fullmatch(topic) is not None)
            )

        without: list[str] = []
        left: dict[str, frozenset[int] | None] = {}
        for topic, numbers in (self.scope.partitions or {}).items():
            # Checked one by one: a topic may have commits on some of the requested partitions.
            if numbers is not None:
                named = scope_asked.get(topic) or frozenset()
                gone = {number for number in numbers & named if TopicPartition(topic, number) not in planned}
                without += [str(TopicPartition(topic, number)) for number in sorted(gone)]
                if kept := numbers - gone:
                    left[topic] = kept
            elif is_left_out(topic):
                without.append(topic)
            else:
                left[topic] = None
        group_id = self.group_id
        if isinstance(group_id, Mapping):
            without += [key for key in group_id if is_left_out(key) and key not in without]
            group_id = {key: group for key, group in group_id.items() if not is_left_out(key)}
        # An empty selection would mean all topics; names must never lead to it.
        if self.scope.partitions is not None and not left:
            raise PlanRefusedError(
                f"{parameter_text('topics')} names {_join_names(without)}, which the window does not have "
                f"(it has {_join_names(sorted(topics))}): correct {parameter_text('topics')}, or plan the "
                "window with them"
            )
        return GroupSelection(group_id, replace(self.scope, partitions=left or None)), without

    def unmatched_names(
        self, sources: Sources | None, origin: str = CHECKPOINT, *, partitions: bool = False
    ) -> list[str]:
        """
        Return a sentence for each name that matches nothing: the name, the existing names and the remedy.

        :param sources: ``None`` if only the names are known.
        :param partitions: whether to check named partitions too, if the broker is not asked for them later.
        """
        parameter = parameter_text(self.scope.parameter)
        known = {topic for _, topic, _ in self._grouped_topics(sources)}
        topics = sorted(known)
        missing = [topic for topic in self.scope.topics or () if topic not in known]
        if sources is None:
            # Without keys the topics cannot be checked here: the broker is asked later whether they exist.
            if not missing or not self._mapping:
                return []
            return [
                f"{parameter} names {_quoted(missing)}, but {parameter_text('group_id')} has no such key (it "
                f"has {_join_names(sorted(self._mapping))}): correct the name, or add a key for the topic"
            ]
        refusals = [] if self.group_id is None else self._key_refusals(sources, origin, topics)
        # A checkpoint has them only after the source's first batch; a window or a file never changes.
        later = ", or wait until the query has read from it" if origin == CHECKPOINT else ""
        if missing:
            refusals.append(
                f"{parameter} names {_quoted(missing)}, which {origin} does not have (it has "
                f"{_join_names(topics)}): correct the name{later}"
            )
        there = {tp for offsets in sources.values() for tp in offsets}
        absent = [tp for tp in self.scope.explicit_partitions if tp.topic in known and tp not in there]
        if partitions and absent:
            same = summarize(tp for tp in there if tp.topic == absent[0].topic)
            refusals.append(
                f"{parameter} names {summarize(absent)}, which {origin} does not have (it has {same}): "
                f"correct the number{later}"
            )
        return refusals

    def _key_refusals(self, sources: Sources, origin: str, topics: Sequence[str]) -> list[str]:
        """Return topics without a key, and keys without a topic."""
        query, named = origin == CHECKPOINT, self._grouped_topics(sources)
        grouped = {topic for _, topic, group in named if group is not None}
        refusals = [
            f"topic {topic!r} of {f'source {source}' if query else origin} has no group in "
            f"{parameter_text('group_id')}: add a key for the topic"
            + (f' or for "{SOURCE_PREFIX}{source}"' if query else "")
            + f", or leave the topic out with {parameter_text('topics', ...)}"
            for source, topic, group in named
            if group is None
            and self.scope.allows(topic)
            and (
                topic not in grouped or any(tp.topic == topic and tp in self.scope for tp in sources[source])
            )
        ]
        if unused := sorted(set(self._mapping) - {self._key(source, topic) for source, topic, _ in named}):
            refusals.append(
                f"{parameter_text('group_id')} names {_quoted(unused)}, which {origin} does not have; it has "
                f"sources {_join_names(sources)} with topics {_join_names(topics)}"
            )
        return refusals

    def _key(self, source: str, topic: str) -> str:
        by_source = f"{SOURCE_PREFIX}{source}"
        # A source's key wins: a topic's key could not distinguish two sources of the same topic.
        return by_source if by_source in self._mapping else topic

    def group_of(self, source: str, topic: str) -> str | None:
        """Return the group of a topic of a source; ``None`` if it has no group."""
        if isinstance(self.group_id, Mapping):
            return self.group_id.get(self._key(source, topic))
        return self.group_id

    def _grouped_topics(self, sources: Sources | None) -> list[tuple[str, str, str | None]]:
        """Return each topic of each source with its group; without sources, the topics that have a key."""
        if sources is None:
            return [("", key, group) for key, group in self._mapping.items()]
        return [
            (source, topic, self.group_of(source, topic))
            for source, offsets in sources.items()
            for topic in sorted({tp.topic for tp in offsets})
        ]


def parse_group_id(value: object) -> GroupIds:
    """Read the ``group_id`` parameter, see :meth:`GroupSelection.parse`."""
    # Error texts show the value as given, not the parsed one.
    given, value = value, load_names(value, "group_id", _FORM)
    if isinstance(value, str) and not is_blank(value):
        return parse_group(value)
    if isinstance(value, Mapping) and value and all(key and isinstance(key, str) for key in value):
        names = {key: f"group_id[{quote(key)}]" for key in value}
        groups = {key: load_names(group, names[key], _FORM) for key, group in value.items()}
        if all(isinstance(name, str) and not (name.strip() and is_blank(name)) for name in groups.values()):
            return {key: parse_group(group, names[key]) for key, group in groups.items()}
    raise parameter_error("group_id", f": found {shorten(given)}; expected {_FORM}")


def _quoted(names: Iterable[str]) -> str:
    return _join_names(map(repr, names))


def _join_names(names: Iterable[str]) -> str:
    return join_first(list(names), 20, shorten)
