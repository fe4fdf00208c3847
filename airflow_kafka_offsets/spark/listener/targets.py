"""Finds the groups that a query's Kafka sources name, and the offsets for each group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.broker_addresses import SERVERS
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.spark.broker import kafka_settings
from airflow_kafka_offsets.spark.listener.queries import SourceState

GROUP_OPTIONS = ("kafka.consumer.commit.groupid", "consumer.commit.groupid")
"""Spark ignores both options; Kafka's consumer logs a warning about the first."""

Settings = tuple[tuple[str, str], ...]
"""Sorted settings of a client: queries with the same settings share a client."""


class Target(NamedTuple):
    """A group of a cluster."""

    cluster: str
    """The brokers as the source names them; empty if unknown."""
    group_id: str


class TargetOffsets(NamedTuple):
    """The offsets for a group, and the settings to reach its cluster."""

    settings: Settings
    offsets: Offsets


def commit_group(options: Mapping[str, str]) -> str | None:
    """Return the group that a Kafka source's options name, ``None`` if they name none; refuse two names."""
    named = {value.strip() for key, value in options.items() if key.lower() in GROUP_OPTIONS} - {""}
    if len(named) > 1:
        raise UsageError(
            f"the options {' and '.join(GROUP_OPTIONS)} of one source name different groups, "
            f"{' and '.join(sorted(named))}: keep one"
        )
    return next(iter(named), None)


def group_targets(
    states: Iterable[SourceState], group_id: GroupIds | None
) -> tuple[dict[Target, TargetOffsets], list[str]]:
    """
    Assign the offsets of a query's sources to the groups that they name.

    If two sources share a partition and a group, the group gets the smaller offset: both sources have
    finished the records before it.

    :param group_id: the group, or ``{topic: group}``, of sources whose options name none.
    :return: the targets, and a sentence about each topic without a group.
    """
    targets: dict[Target, TargetOffsets] = {}
    without: dict[str, None] = {}
    for state in states:
        named = commit_group(state.options)
        options = {key: value for key, value in state.options.items() if key.lower() not in GROUP_OPTIONS}
        settings = kafka_settings(options)
        named_topics = {key.lower(): value for key, value in options.items()}
        topics = {topic.strip() for topic in named_topics.get("subscribe", "").split(",")} - {""}
        topics |= json.loads(named_topics.get("assign", "{}")).keys()
        for tp, offset in state.offsets.items():
            # Until its first batch, a restarted query shows topics that the source has left, or another's.
            if topics and tp.topic not in topics:
                continue
            default = group_id if group_id is None or isinstance(group_id, str) else group_id.get(tp.topic)
            group = named or default
            if group is None:
                without[f"its source {state.name} names no group for topic {tp.topic}: not committed"] = None
                continue
            target = Target(settings.get(SERVERS, ""), group)
            new = TargetOffsets(tuple(sorted(settings.items())), {})
            offsets = targets.setdefault(target, new).offsets
            offsets[tp] = min(offset, offsets.get(tp, offset))
    return targets, list(without)
