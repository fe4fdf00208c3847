"""The topics and partitions that a pipeline is limited to (the ``topics`` parameter)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import load_json_parameter, repr_hint
from airflow_kafka_offsets.model.offsets import MAX_PARTITION, TopicPartition, is_topic_name
from airflow_kafka_offsets.model.text import shorten, size_error
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text

# The digits of a 32-bit number.
_PARTITION = re.compile(r"[0-9]{1,10}")
_FORM = "the name of a topic, 'topic:0,1' for some of its partitions, or a list of these"


@dataclass(frozen=True)
class TopicScope:
    """
    An allow-list of topics and partitions.

    :param partitions: topic -> its partitions, or ``None`` for all partitions; ``None`` instead of the
        mapping means every topic.
    :param parameter: the parameter that names them, for error texts.
    """

    partitions: Mapping[str, frozenset[int] | None] | None = None
    parameter: str = field(default="topics", compare=False)

    @classmethod
    def parse(cls, value: object, parameter: str = "topics") -> TopicScope:
        """
        Parse ``topics``, or another parameter that names topics.

        :param value: ``None`` for everything; ``"orders"``, ``"orders:0,1"`` (Kafka's spelling), a list of
            these, or each of these as JSON text from a template.
        :raises UsageError: for any other value, such as an empty text or list.
        """
        if value is None:
            return cls()
        value = load_names(value, parameter, _FORM, ("{", "["))
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, Mapping):
            raise _bad_topics(value, parameter)
        partitions: dict[str, set[int] | None] = {}
        for entry in entries:
            entry = load_names(entry, parameter, _FORM)
            if not isinstance(entry, str):
                raise _bad_topics(entry, parameter)
            if refusal := size_error(parameter_text(parameter), entry, ","):
                raise UsageError(refusal, parameter=parameter)
            topic, colon, text = entry.strip().partition(":")
            cells = [cell.strip() for cell in text.split(",")] if colon else []
            numbers = {int(cell) if _PARTITION.fullmatch(cell) else -1 for cell in cells}
            if not is_topic_name(topic) or not all(0 <= number <= MAX_PARTITION for number in numbers):
                raise _bad_topics(entry, parameter)
            known = partitions.setdefault(topic, set())
            if colon and known is not None:
                known |= numbers
            else:
                partitions[topic] = None
        if not partitions:
            raise parameter_error(parameter, f" is empty: expected {_FORM}; or omit it")
        return cls(
            {topic: None if found is None else frozenset(found) for topic, found in partitions.items()},
            parameter,
        )

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        if self.partitions is None:
            return True
        topic, number = topic_partition
        allowed = self.partitions.get(topic, ())
        return allowed is None or number in allowed

    def as_json(self) -> dict[str, list[int] | None] | None:
        """Return plain JSON: topic -> partitions, or ``None`` for all of them; ``None`` for every topic."""
        if self.partitions is None:
            return None
        return {
            topic: None if numbers is None else sorted(numbers)
            for topic, numbers in sorted(self.partitions.items())
        }

    @property
    def topics(self) -> list[str] | None:
        """The named topics; ``None`` for all topics."""
        return None if self.partitions is None else sorted(self.partitions)

    @property
    def explicit_partitions(self) -> list[TopicPartition]:
        """The partitions that are named by their numbers."""
        return sorted(
            TopicPartition(topic, number)
            for topic, numbers in (self.partitions or {}).items()
            for number in (numbers or ())
        )

    def allows(self, topic: str) -> bool:
        """Whether the topic, or some of its partitions, is in scope."""
        return self.partitions is None or topic in self.partitions

    @classmethod
    def exactly(cls, partitions: Iterable[TopicPartition]) -> TopicScope:
        """Return the scope of exactly these partitions."""
        numbers: dict[str, set[int]] = {}
        for topic, number in partitions:
            numbers.setdefault(topic, set()).add(number)
        return cls({topic: frozenset(found) for topic, found in sorted(numbers.items())})

    def restricted_to(self, topics: Iterable[str]) -> TopicScope:
        """Return the scope limited to these topics; the result may be empty."""
        names = set(topics)
        if self.partitions is None:
            return replace(self, partitions=dict.fromkeys(sorted(names)))
        kept = {topic: numbers for topic, numbers in self.partitions.items() if topic in names}
        return replace(self, partitions=kept)

    def partitions_on_broker(self, partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return the broker's partitions that are in scope, and all partitions that are named by number."""
        found = (TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers)
        return sorted({tp for tp in found if tp in self}.union(self.explicit_partitions))


def plain_names(value: object) -> object:
    """Return ``group_id`` or ``topics`` as plain JSON: mappings as dicts, sets and tuples as lists."""
    if isinstance(value, Mapping):
        return {key: plain_names(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def load_names(value: object, parameter: str, expected: str, marks: tuple[str, ...] = ("{",)) -> object:
    """Parse a parameter that a template may have rendered as JSON; ``marks`` begin JSON, and no name."""
    text = value.strip() if isinstance(value, str) else ""
    if not text.startswith(marks) and (len(text) < 2 or text[0] + text[-1] not in ("[]", '""')):
        return value
    return load_json_parameter(text, parameter, expected)


def _bad_topics(value: object, parameter: str) -> UsageError:
    return parameter_error(parameter, f": found {shorten(value)}; expected {_FORM}{repr_hint(value)}")
