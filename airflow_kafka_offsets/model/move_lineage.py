"""Lineage of a move: its receipt as OpenLineage facets, and how much of the move was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_kafka_offsets.errors import (
    CommitError,
    GroupMovedError,
    KafkaOffsetsError,
    Partition,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.lineage import (
    LAG,
    MOST_RANGES,
    MOVE,
    Input,
    Lineage,
    given,
    group_facet,
    namespace_of,
    range_facet,
)
from airflow_kafka_offsets.model.offsets import by_partition
from airflow_kafka_offsets.model.window import OffsetWindow

Operation = Literal["commit", "reset", "restore", "failover"]

Written = Literal["all", "some", "none", "unknown"]
"""How much of a group's move was written."""

_STATES = {"all": "written", "some": "partly written", "none": "not written", "unknown": "unknown"}


@dataclass(frozen=True)
class MoveRecord:
    """
    A move of groups and its outcome.

    :param receipt: the receipt in XCom.
    :param servers: bootstrap servers of the connection; without them the lineage has no topics.
    :param begun: whether the task may have started to write.
    :param error: the error that ended the move.
    :param reads: whether a job has read the records that the groups move past.
    :param has_lag: whether a verified receipt shows the lag of each group.
    :param window: the window whose end is committed.
    """

    operation: Operation
    receipt: Mapping[str, Any]
    servers: str | None = None
    begun: bool = False
    error: KafkaOffsetsError | None = None
    reads: bool = False
    has_lag: bool = False
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
        groups: Sequence[Mapping[str, Any]] = self.receipt.get("groups", [self.receipt])
        return groups

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
        if self.verified and self.has_lag:
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
                entry |= given({"written": written[topic, int(number)]})
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
            **given(named),
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
        lags = [max(0, end[number] - max(start[number], offset)) for number, offset in after.items()]
        # The position of a skipped partition is not in the receipt.
        partial = topic in group["skipped"]
        topics.append({"topic": topic, **({} if partial else {"lag": sum(lags)})})
    return {"groupId": group["group_id"], "topics": topics}
