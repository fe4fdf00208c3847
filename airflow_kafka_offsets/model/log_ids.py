"""
Identity of logs: the id of the Kafka cluster, and the ids of its topics.

On another cluster, or in a recreated topic, the same offset is a different record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.text import DescribeValue, join_first, shorten
from airflow_kafka_offsets.model.wording import parameter_text

URL_SAFE = str.maketrans("+/", "-_")
"""Kafka writes ids in URL-safe base64, librdkafka in plain base64."""


@dataclass(frozen=True)
class LogIds:
    """
    The logs that offsets belong to. An empty id is unknown and matches every id.

    :param topics: topic -> its id; a recreated topic has a new id.
    """

    cluster: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any id is known."""
        return bool(self.cluster or self.topics)

    def __or__(self, other: LogIds) -> LogIds:
        """Return the ids of both; an id of ``other`` wins."""
        return LogIds(other.cluster or self.cluster, {**self.topics, **other.topics})

    @classmethod
    def union(cls, found: Iterable[LogIds]) -> LogIds:
        """Return all ids; a later id wins."""
        return reduce(or_, found, cls())

    def restricted_to(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of some of the topics."""
        return LogIds(
            self.cluster, {name: self.topics[name] for name in sorted({*topics} & self.topics.keys())}
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON: ``cluster`` and ``topics``."""
        return {"cluster": self.cluster, "topics": dict(sorted(self.topics.items()))}

    @classmethod
    def parse(cls, value: object, what: str = "logs", *, describe: DescribeValue = shorten) -> LogIds:
        """Read the result of :meth:`as_json` (``None``: unknown ids), or raise an OffsetsFormatError."""
        if value is None:
            return cls()
        known = value if isinstance(value, Mapping) else {"cluster": None}
        cluster, topics = known.get("cluster", ""), known.get("topics", {})
        if not isinstance(cluster, str) or not isinstance(topics, Mapping):
            raise OffsetsFormatError(
                f"{what}: found {describe(value)}; expected cluster and topics with their ids"
            )
        if not all(isinstance(each, str) for pair in topics.items() for each in pair):
            raise OffsetsFormatError(f"{what}: found {describe(topics)}; expected an id for each topic")
        return cls(cluster, {topic: topic_id.translate(URL_SAFE) for topic, topic_id in topics.items()})

    def is_other_cluster(self, current: LogIds) -> bool:
        """Whether both clusters are known and differ."""
        return bool(self.cluster and current.cluster and self.cluster != current.cluster)

    def recreated_topics(self, current: LogIds) -> list[str]:
        """Return the topics whose ids are known on both sides and differ."""
        known = {topic for topic, found in self.topics.items() if found and current.topics.get(topic)}
        return sorted(topic for topic in known if self.topics[topic] != current.topics[topic])


UNKNOWN_LOGS = LogIds()


def other_logs_refusals(
    what: str, recorded: LogIds, current: LogIds, *, old_offsets: bool = True, remedy: str = ""
) -> list[str]:
    """
    Return why offsets of the recorded logs must not be used on the current logs.

    If the cluster differs, all topics have other ids, so the topics are not named.

    :param what: the owner of the recorded ids, such as ``the receipt``, for the text.
    :param old_offsets: whether the offsets to write come from the recorded logs. New offsets, such as those
        at a time, are valid in a recreated topic.
    :param remedy: the remedy for the text; by default the remedies of a commit.
    """
    allow = f"set {parameter_text('allow_new_cluster', True)} if"
    if recorded.is_other_cluster(current):
        remedy = remedy or f"{allow} the pipeline was moved there and the offsets belong to the new cluster"
        return [
            f"{what} is of cluster {shorten(recorded.cluster)}, and the connection leads to cluster "
            f"{shorten(current.cluster)}: there the same offset is a different record, even on a cluster "
            f"that MirrorMaker copies to; correct the connection, or {remedy}"
        ]
    again = recorded.recreated_topics(current) if old_offsets else []
    if not again:
        return []
    first = again[0]
    remedy = remedy or (
        "start the query with a new checkpoint, reset the group to 'earliest' or to a time, or "
        f"{allow} the offsets belong to the new topic"
    )
    return [
        f"topic {join_first(again, show=repr)} was deleted and created again: {what} is of "
        f"topic id {shorten(recorded.topics[first])} ({first}), which is {shorten(current.topics[first])} "
        f"now: the same offsets are different records; {remedy}"
    ]
