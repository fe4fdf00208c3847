"""
Lineage of a task: topics as OpenLineage datasets, and the receipt or report as facets.

All is plain data, computed from the task's XCom. A topic has the same name as in the events of Spark's own
OpenLineage agent, so that both refer to one dataset: the namespace is ``kafka://host:port`` of the first
bootstrap server (``KafkaBootstrapServerResolver`` in ``openlineage-spark``), the name is the topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.errors import (
    CommitError,
    GroupMovedError,
    KafkaOffsetsError,
    Partition,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.broker_addresses import with_port
from airflow_kafka_offsets.model.drift import DriftReport
from airflow_kafka_offsets.model.offsets import LogRange, by_partition, by_topic
from airflow_kafka_offsets.model.window import OffsetWindow

RANGES, MOVE, LAG = "kafkaOffsets_ranges", "kafkaOffsets_move", "kafkaOffsets_lag"
"""Keys of the facets: the first one is an input facet, the others are run facets."""

MOST_RANGES = 1_000
"""Largest number of partitions for which an event lists each range; a larger event has totals only."""

_PROTOCOL = re.compile(r"[A-Za-z][\w+.-]*://")

Operation = Literal["commit", "reset", "restore", "failover"]

Written = Literal["all", "some", "none", "unknown"]
"""How much of a group's move was written."""

_STATES = {"all": "written", "some": "partly written", "none": "not written", "unknown": "unknown"}


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
    inputs = []
    for topic, ranges in by_topic(window.ranges).items():
        facets = [range_facet(int(number), *offsets) for number, offsets in ranges.items()]
        records = sum(offsets.size for offsets in ranges.values())
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
    """Return the unread records, lag and headroom of drift reports, each given after its Kafka connection."""
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
                start = None if entry.is_of_other_log else entry.committed
                there.append(range_facet(number, start, entry.log.end))
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
                        **without_none({"lag": lags.get(topic), "headroomSeconds": least.get(topic)}),
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


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not ``None``, like OpenLineage's client does."""
    return {name: value for name, value in values.items() if value is not None}


def range_facet(partition: int, start: int | None, end: int) -> dict[str, Any]:
    """Return a partition's range; without a commit it has no ``from``."""
    return {"partition": partition, **without_none({"from": start}), "until": end}


def group_facet(
    group_id: str | None, state: str, ranges: Sequence[Any], difference: int | None, *, shown: bool
) -> dict[str, Any]:
    """Return a group's entry in the facet of a topic; with totals only unless its ranges are shown."""
    totals = {"state": state, "partitions": len(ranges), "offsetDifference": difference}
    return without_none({"groupId": group_id, **totals, "ranges": ranges if shown else None})


@dataclass(frozen=True)
class MoveRecord:
    """
    A move of groups and its outcome.

    :param servers: bootstrap servers of the connection; without them the lineage has no topics.
    :param begun: whether the task may have started to write.
    :param reads: whether a job has read the records that the groups move past, and the groups move in all
        partitions that they read, so that a verified receipt shows their lag.
    """

    operation: Operation
    receipt: Mapping[str, Any]
    servers: str | None = None
    begun: bool = False
    error: KafkaOffsetsError | None = None
    reads: bool = False
    window: OffsetWindow | None = None

    @property
    def verified(self) -> bool:
        """Whether every commit was read back."""
        return bool(self.receipt["verified"])

    @property
    def plan_only(self) -> bool:
        """Whether the task only had to plan; the receipt of a refused move says so too."""
        return bool(self.receipt["plan_only"]) and self.error is None

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        """The receipts of the groups."""
        return [*self.receipt.get("groups", [self.receipt])]

    def written(self, group: Mapping[str, Any]) -> dict[Partition, bool | None]:
        """Return partition -> whether the group's offset was written; ``None`` if unknown."""
        error = self.error
        partitions: list[Partition] = [*by_partition(group["after"])]
        progress = None if error is None else error.progress
        known: bool | None
        if self.verified or not self.begun:
            known = self.verified
        elif progress is not None and group["group_id"] != progress.failed:
            known = group["group_id"] in progress.written
        elif progress is not None and isinstance(error, CommitError):
            results = {**dict.fromkeys(error.failed, False), **dict.fromkeys(error.written, True)}
            return {tp: results.get(tp) for tp in partitions}
        else:
            refused = isinstance(error, PlanRefusedError) or (progress and isinstance(error, GroupMovedError))
            known = False if refused else None
        return dict.fromkeys(partitions, known)

    def lineage(self) -> Lineage:
        """Return inputs and run facets."""
        shown = sum(len(by_partition(group["after"])) for group in self.groups) <= MOST_RANGES
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for group in self.groups:
            written = self.written(group)
            for topic in group["after"]:
                parts.setdefault(topic, []).append(self._part(group, topic, written, shown=shown))
        namespace = namespace_of(self.servers)
        inputs = [
            Input(namespace, topic, groups, self._rows(topic))
            for topic, groups in sorted(parts.items())
            if namespace is not None
        ]
        run = {MOVE: self._facet()}
        if self.verified and self.reads:
            run[LAG] = {"groups": [_lag_of_receipt(group) for group in self.groups]}
        return Lineage(tuple(inputs), run)

    def _part(
        self, group: Mapping[str, Any], topic: str, written: Mapping[Partition, bool | None], *, shown: bool
    ) -> Mapping[str, Any]:
        how_much = _summarize_written(written[tp] for tp in by_partition({topic: group["after"][topic]}))
        ranges, difference = [], 0
        for number, until in group["after"][topic].items():
            before = group["before"][topic][number]
            difference += until - (group["log_start"][topic][number] if before is None else before)
            entry = range_facet(int(number), before, until)
            if how_much == "some":
                entry |= without_none({"written": written[topic, int(number)]})
            ranges.append(entry)
        state = "planned" if self.plan_only else _STATES[how_much]
        return group_facet(group["group_id"], state, ranges, difference, shown=shown)

    def _rows(self, topic: str) -> int | None:
        """Return the number of records that the group has moved past in a topic, if a job has read them."""
        groups = [group for group in self.groups if topic in group["after"]]
        if not self.reads or not self.verified or len(groups) != 1:
            return None
        (group,) = groups
        before, after = group["before"][topic], group["after"][topic]
        forward = all(before[number] is not None and before[number] <= after[number] for number in after)
        left = topic in group["skipped"] or topic in group["clamped"]
        return sum(after[number] - before[number] for number in after) if forward and not left else None

    def _facet(self) -> Mapping[str, Any]:
        receipt = self.receipt
        moved = receipt.get("checkpoint") or {}
        source = {**receipt["source"], **moved}
        named = {
            "kafkaConfigId": receipt.get("kafka_config_id"),
            "checkpointLocation": moved.get("location") or receipt["source"].get("checkpoint"),
            "checkpointMove": moved.get("kind"),
            "checkpointWritten": self._checkpoint_written if moved.get("archive") else None,
            "queryId": source.get("query_id") or None,
            "batchId": source.get("batch_id"),
            "digest": None if self.window is None else self.window.digest,
        }
        return {
            "operation": self.operation,
            "planOnly": self.plan_only,
            "verified": self.verified,
            "groups": [self._totals(group) for group in self.groups],
            **without_none(named),
        }

    def _totals(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "groupId": group["group_id"],
            "written": _summarize_written(self.written(group).values()),
            "partitions": sum(map(len, group["after"].values())),
            "changed": group["changed"],
            "offsetDifference": group["moved_by"],
            "skipped": sum(map(len, group["skipped"].values())),
            "clamped": sum(map(len, group["clamped"].values())),
            "lost": group["lost"],
        }

    @property
    def _checkpoint_written(self) -> bool | None:
        """Whether the checkpoint was moved. Groups are committed after the checkpoint."""
        if self.verified or not self.begun:
            return self.verified
        if self.error is not None and self.error.progress is not None:
            return True
        return False if isinstance(self.error, PlanRefusedError) else None


def _summarize_written(written: Iterable[bool | None]) -> Written:
    found = {*written}
    if found <= {True} and found:
        return "all"
    return "some" if True in found else "unknown" if None in found else "none"


def _lag_of_receipt(group: Mapping[str, Any]) -> Mapping[str, Any]:
    topics = []
    for topic, after in sorted(group["after"].items()):
        start, end = group["log_start"][topic], group["log_end"][topic]
        lags = [LogRange(start[number], end[number]).lag(offset) for number, offset in after.items()]
        # The position of a skipped partition is not in the receipt.
        partial = topic in group["skipped"]
        topics.append({"topic": topic, **({} if partial else {"lag": sum(lags)})})
    return {"groupId": group["group_id"], "topics": topics}
