"""Computes the groups of a query's sources, and the offsets for each group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.kafka_security import SERVERS
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.spark.listener.queries import GROUP_OPTIONS, SourceState
from airflow_kafka_offsets.spark.source_options import kafka_settings

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
        options = {key: value for key, value in state.options.items() if key.lower() not in GROUP_OPTIONS}
        settings = kafka_settings(options)
        for tp, offset in state.offsets.items():
            default = group_id if group_id is None or isinstance(group_id, str) else group_id.get(tp.topic)
            group = state.group_id or default
            if group is None:
                without[f"its source {state.name} names no group for topic {tp.topic}: not committed"] = None
                continue
            target = Target(settings.get(SERVERS, ""), group)
            new = TargetOffsets(tuple(sorted(settings.items())), {})
            offsets = targets.setdefault(target, new).offsets
            offsets[tp] = min(offset, offsets.get(tp, offset))
    return targets, list(without)
