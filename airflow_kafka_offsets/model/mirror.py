"""A mirror of a Kafka cluster: its connection, the names of its topics, and its offset syncs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_kafka_offsets.model.formats import load_json_parameter
from airflow_kafka_offsets.model.offsets import TopicPartition, is_topic_name
from airflow_kafka_offsets.model.parameters import choice_parser, parse_text
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_error, unexpected

SyncsOn = Literal["target", "source"]
"""The cluster that has the syncs topic: MirrorMaker's ``offset-syncs.topic.location``."""

SYNCS_TOPIC = re.compile(r"mm2-offset-syncs[.].+[.]internal")
"""The names of MirrorMaker's syncs topics, with the default separator."""
_OWN_TOPICS = re.compile(r"(?:mm2-offset-syncs[.](?P<syncs>.+)|(?P<checkpoints>.+)[.]checkpoints)[.]internal")

_FORM = '{"kafka_config_id": "kafka_standby", "prefix": "primary."}'
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True)
class Mirror:
    """
    The mirror of a pipeline's cluster, or other names of topics on the cluster itself.

    :param kafka_config_id: Airflow connection of the mirror; empty on the command line.
    :param prefix: text that the mirror puts before the names of topics, such as ``primary.``. MirrorMaker's
        ``DefaultReplicationPolicy`` puts the source's alias there. Empty: the topics keep their names.
    :param without: text that the mirror removes from the start of the names when it copies them back.
    :param topics: topic -> its name on the mirror, for names that follow no rule.
    :param syncs_topic: MirrorMaker's topic of offset syncs; by default the only such topic of its cluster.
    :param syncs_on: the cluster that has the syncs topic.
    """

    kafka_config_id: str = ""
    prefix: str = ""
    without: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    syncs_topic: str = ""
    syncs_on: SyncsOn = "target"

    @classmethod
    def parse(cls, value: object, parameter: str = "mirror") -> Mirror:
        """Read a mirror from a mapping, or its JSON text; a UsageError names the key and both values."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = load_json_parameter(value, parameter, _FORM)
        if not isinstance(value, Mapping):
            raise parameter_error(parameter, f": found {shorten(value)}; expected an object such as {_FORM}")
        if unknown := sorted(str(key) for key in value if key not in _READERS):
            raise parameter_error(
                parameter,
                f": found the key {shorten(', '.join(unknown))}; expected keys of {', '.join(_READERS)}",
            )
        if "kafka_config_id" not in value:
            raise parameter_error(
                parameter, f": the connection of the mirror is missing; expected an object such as {_FORM}"
            )
        if "prefix" in value and "without" in value:
            raise parameter_error(parameter, ": prefix and without contradict each other: omit one")
        return cls.from_keys(value, {key: f"{parameter}.{key}" for key in value})

    @classmethod
    def from_keys(cls, values: Mapping[str, object], parameters: Mapping[str, str]) -> Mirror:
        """Read a mirror from the values of its keys; ``parameters`` has the name of each in error texts."""
        return cls(**{key: _READERS[key](each, parameters[key]) for key, each in values.items()})

    def topic(self, name: str) -> str:
        """Return the name of a topic on the mirror."""
        return self.topics.get(name, self.prefix + name.removeprefix(self.without))

    def partition(self, tp: TopicPartition) -> TopicPartition:
        """Return the mirror's copy of a partition."""
        return TopicPartition(self.topic(tp.topic), tp.partition)

    def back(self) -> Mirror:
        """Return the names in the other direction, from the mirror to the cluster that it copies."""
        topics = {name: topic for topic, name in self.topics.items()}
        return replace(self, prefix=self.without, without=self.prefix, topics=topics)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON that :meth:`parse` reads, without empty values and defaults."""
        found = {name: getattr(self, name) for name in _READERS} | {"topics": dict(self.topics)}
        return {name: each for name, each in found.items() if each and (name, each) != ("syncs_on", "target")}


def source_aliases(topics: Iterable[str]) -> list[str]:
    """Return the aliases of a mirror's sources, which MirrorMaker's internal topics on the mirror contain."""
    found = filter(None, map(_OWN_TOPICS.fullmatch, topics))
    return sorted({each["syncs"] or each["checkpoints"] for each in found})


def _read_part(value: object, parameter: str) -> str:
    text = parse_text(value, parameter)
    if not _PREFIX.fullmatch(text):
        raise unexpected(parameter, text, "a part of a topic's name, such as 'primary.'")
    return text


def _read_topic(value: object, parameter: str) -> str:
    text = parse_text(value, parameter)
    if not is_topic_name(text):
        raise unexpected(parameter, text, "the name of a topic")
    return text


def _read_topics(value: object, parameter: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not value:
        raise parameter_error(
            parameter, f': found {shorten(value)}; expected names such as {{"orders": "dr-orders"}}'
        )
    found = {
        _read_topic(key, parameter): _read_topic(each, f"{parameter}[{key!r}]") for key, each in value.items()
    }
    if len(set(found.values())) < len(found):
        raise parameter_error(
            parameter, f": found {shorten(dict(value))}; expected a different name for each topic"
        )
    return found


_READERS: Mapping[str, Any] = {
    "kafka_config_id": parse_text,
    "prefix": _read_part,
    "without": _read_part,
    "topics": _read_topics,
    "syncs_topic": _read_topic,
    "syncs_on": choice_parser(SyncsOn),
}
