"""
Identity of logs: the id of the Kafka cluster, and the ids of its topics.

The same offset is another record on another cluster, and in a topic that was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.text import DescribeValue, shorten
from airflow_kafka_offsets.model.wording import parameter_text

# Topics that an error names.
_SHOWN = 5
URL_SAFE = str.maketrans("+/", "-_")
"""Kafka writes ids in the URL-safe form of base64, librdkafka in the plain one."""


@dataclass(frozen=True)
class LogIds:
    """
    The logs that offsets count in. An empty id is unknown, and compares with everything.

    :param cluster: the id of the Kafka cluster.
    :param topics: topic -> its id, which a topic that is created again does not get again.
    """

    cluster: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self.cluster or self.topics)

    def __or__(self, other: LogIds) -> LogIds:
        """Return the ids of both, those of ``other`` where both have one."""
        return LogIds(other.cluster or self.cluster, {**self.topics, **other.topics})

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
        """
        Read what :meth:`as_json` returned; nothing is known where it is missing.

        :raises OffsetsFormatError: if it is anything else.
        """
        if value is None:
            return cls()
        cluster, topics = (
            (value.get("cluster", ""), value.get("topics", {}))
            if isinstance(value, Mapping)
            else (None, None)
        )
        if not isinstance(cluster, str) or not isinstance(topics, Mapping):
            raise OffsetsFormatError(
                f"{what}: found {describe(value)}; expected cluster and topics with their ids"
            )
        if not all(isinstance(each, str) for pair in topics.items() for each in pair):
            raise OffsetsFormatError(f"{what}: found {describe(topics)}; expected an id for each topic")
        return cls(cluster, {topic: topic_id.translate(URL_SAFE) for topic, topic_id in topics.items()})

    def is_other_cluster(self, current: LogIds) -> bool:
        """Whether the cluster is known to be another one now."""
        return bool(self.cluster and current.cluster and self.cluster != current.cluster)

    def recreated_topics(self, current: LogIds) -> list[str]:
        """Return the topics that are known to have been deleted and created again since."""
        known = {topic for topic, found in self.topics.items() if found and current.topics.get(topic)}
        return sorted(topic for topic in known if self.topics[topic] != current.topics[topic])


UNKNOWN_LOGS = LogIds()


def other_logs_refusals(
    what: str, recorded: LogIds, current: LogIds, *, old_offsets: bool = True, remedy: str = ""
) -> list[str]:
    """
    Return why offsets must not be taken from logs to others.

    Of another cluster all topics have other ids, so that these are not named as well.

    :param what: what has counted in the logs of ``then``, such as ``the receipt``.
    :param old_offsets: whether the offsets to write are counted in the logs of then. Others, such as those
        at a time, are right in a topic that was created again.
    :param remedy: what to do, where nothing is to be committed; by default what a commit can do.
    """
    if recorded.is_other_cluster(current):
        return [
            f"{what} is of cluster {shorten(recorded.cluster)}, and the connection leads to cluster "
            f"{shorten(current.cluster)}: the same offset is another record there, also on a cluster that "
            "MirrorMaker copies to; correct the connection, or "
            + (
                remedy
                or f"set {parameter_text('allow_new_cluster', True)} if the pipeline was moved there and the "
                "offsets are those of the new cluster"
            )
        ]
    again = recorded.recreated_topics(current) if old_offsets else []
    if not again:
        return []
    first, more = again[0], f" and {len(again) - _SHOWN} more" if len(again) > _SHOWN else ""
    return [
        f"topic {', '.join(map(repr, again[:_SHOWN]))}{more} was deleted and created again: {what} is of "
        f"topic id {shorten(recorded.topics[first])} ({first}), which is {shorten(current.topics[first])} "
        "now: the same offsets are other records; "
        + (
            remedy
            or "let the query begin with a new checkpoint, reset the group to 'earliest' or to a time, or "
            f"set {parameter_text('allow_new_cluster', True)} if the offsets are those of the new topic"
        )
    ]
