"""
Lineage of a task: topics as OpenLineage datasets, and the receipt or report as facets.

Everything here is plain data, computed from the task's XCom. A topic has the same name as in the events of
Spark's own OpenLineage agent, so that both events refer to one dataset: the namespace is
``kafka://host:port`` of the first bootstrap server (``KafkaBootstrapServerResolver`` in
``openlineage-spark``), the name is the topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_kafka_offsets.model.drift import DriftReport
from airflow_kafka_offsets.model.kafka_security import with_port
from airflow_kafka_offsets.model.window import OffsetWindow

RANGES, MOVE, LAG = "kafkaOffsets_ranges", "kafkaOffsets_move", "kafkaOffsets_lag"
"""Keys of the facets: the first one is an input facet, the others are run facets."""

MOST_RANGES = 1_000
"""Largest number of partitions for which an event lists each range; a larger event has totals only."""

_PROTOCOL = re.compile(r"[A-Za-z][\w+.-]*://")


class Input(NamedTuple):
    """A topic as the input of a task."""

    namespace: str
    name: str
    groups: Sequence[Mapping[str, Any]]
    """Content of the facet :data:`RANGES`: one entry for each group."""
    rows: int | None = None
    """Number of records that were read; ``None`` if unknown."""


@dataclass(frozen=True)
class Lineage:
    """
    Inputs and run facets of one task.

    :param run: key -> content of each run facet.
    """

    inputs: tuple[Input, ...] = ()
    run: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def lineage_of_window(window: OffsetWindow, servers: Mapping[str, str]) -> Lineage:
    """Return what a window's job will read; ``servers`` has the bootstrap servers of each connection."""
    kafka_config_id = str(window.source.get("kafka_config_id"))
    group = window.source.get("group_id")
    namespace = namespace_of(servers.get(kafka_config_id))
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for tp, offsets in sorted(window.ranges.items()):
        topics.setdefault(tp.topic, []).append((tp.partition, *offsets))
    inputs = []
    for topic, ranges in topics.items():
        facets = [range_facet(*each) for each in ranges]
        records = sum(end - start for _, start, end in ranges)
        group_id = group.get(topic) if isinstance(group, Mapping) else group
        part = group_facet(group_id, "planned", facets, records, shown=len(window.ranges) <= MOST_RANGES)
        if namespace is not None:
            inputs.append(Input(namespace, topic, [part]))
    move = {
        "operation": "plan",
        "planOnly": True,
        "verified": False,
        "groups": [],
        "kafkaConfigId": kafka_config_id,
        "digest": window.digest,
    }
    return Lineage(tuple(inputs), {MOVE: move})


def lineage_of_reports(reports: Sequence[tuple[str, DriftReport]], servers: Mapping[str, str]) -> Lineage:
    """
    Return the unread records, lag and headroom of a drift check.

    :param reports: each report, after the connection of its cluster.
    :param servers: as for a window.
    """
    shown = sum(len(report.partitions) for _, report in reports) <= MOST_RANGES
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    groups = []
    for kafka_config_id, report in reports:
        namespace, lags = namespace_of(servers.get(kafka_config_id)), report.lag.by_topic
        ranges: dict[str, list[Mapping[str, Any]]] = {}
        for entry in report.partitions:
            topic, number = entry.topic_partition
            there = ranges.setdefault(topic, [])
            if entry.log is not None:
                there.append(range_facet(number, entry.committed, entry.log.end))
        for topic, there in ranges.items():
            if namespace is not None and there:
                part = group_facet(report.group_id, "waiting", there, lags.get(topic), shown=shown)
                parts.setdefault((namespace, topic), []).append(part)
        least: dict[str, float] = {}
        for tp, headroom in report.headroom.items():
            if (seconds := headroom.seconds) is not None:
                least[tp.topic] = min(seconds, least.get(tp.topic, seconds))
        groups.append(
            {
                "groupId": report.group_id,
                "kafkaConfigId": kafka_config_id,
                "checkpointLocation": report.batch.location,
                "drifted": report.drifted,
                "verdicts": [
                    {"verdict": name, "partitions": number} for name, number in report.verdicts.items()
                ],
                "lost": report.lost,
                "topics": [
                    {
                        "topic": topic,
                        **given({"lag": lags.get(topic), "headroomSeconds": least.get(topic)}),
                    }
                    for topic in ranges
                ],
            }
        )
    inputs = [Input(*topic, found) for topic, found in sorted(parts.items())]
    return Lineage(tuple(inputs), {LAG: {"groups": groups}} if groups else {})


def namespace_of(servers: str | None) -> str | None:
    """Return the namespace of the topics of ``bootstrap.servers``; ``None`` without a broker."""
    first = next((each.strip() for each in (servers or "").split(",") if each.strip()), "")
    address = with_port(_PROTOCOL.sub("", first, count=1))
    return f"kafka://{address}" if address else None


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not ``None``, like OpenLineage's client does."""
    return {name: value for name, value in values.items() if value is not None}


def range_facet(partition: int, start: int | None, end: int) -> dict[str, Any]:
    """Return a partition's range; without a commit it has no ``from``."""
    return {"partition": partition, **given({"from": start}), "until": end}


def group_facet(
    group_id: str | None, state: str, ranges: Sequence[Any], difference: int | None, *, shown: bool
) -> dict[str, Any]:
    """Return a group's entry in the facet of a topic; with totals only unless its ranges are shown."""
    totals = {"state": state, "partitions": len(ranges), "offsetDifference": difference}
    return given({"groupId": group_id, **totals, "ranges": ranges if shown else None})
