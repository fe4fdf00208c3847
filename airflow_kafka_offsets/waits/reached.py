"""A wait for a target that no longer moves."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeGuard

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import DriftError, UsageError
from airflow_kafka_offsets.model.formats import load_json, offsets_json, parse_offsets
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import (
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    furthest_behind,
    remaining_offsets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import iso_time, parse_count, time_example, timestamp_ms
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.table import offset_cell
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text, unexpected
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals
from airflow_kafka_offsets.readings.places import place_offsets
from airflow_kafka_offsets.readings.positions import check_in_log, partitions_in_scope
from airflow_kafka_offsets.readings.topic_times import records_since
from airflow_kafka_offsets.waits.wait import (
    KnownCheckpoint,
    Reading,
    Wait,
    partition_table,
    unknown_groups_text,
)


@dataclass(frozen=True)
class ReachedWait(Wait):
    """
    Wait until the position is at or past a frozen target in every partition.

    :param target: offsets in Spark's form. Before :meth:`freeze`, also ``latest`` (the log end), a time (each
        partition's first record at or after it; the log end without one, or if it is ahead of the clock) or a
        receipt (the offsets after its move). Offsets and receipts may be JSON text.
    :param tolerance: number of offsets below the target, see :class:`~airflow_kafka_offsets.model.lag.Lag`.
    :param cluster: id of the cluster on which the target was frozen.
    """

    parsers: ClassVar = {
        **Wait.parsers,
        "target": lambda value, name: _read_target(value, name),
        "tolerance": parse_count,
    }

    target: str | Mapping[str, Any] | None = None
    tolerance: int = 0
    cluster: str = ""

    @classmethod
    def check_parameters(cls, parameters: Any) -> None:
        """Refuse parameters that are missing or contradict each other."""
        super().check_parameters(parameters)
        if parameters.target is None:
            raise parameter_error("target", f" is missing: give {_targets()}")

    def freeze(self, client: OffsetsReader, checkpoint: SparkCheckpoint | None) -> ReachedWait:
        """
        Return the wait with a fixed target, limited to ``topics``.

        :raises UsageError: if names match nothing, or for a time in the future; the error is retriable if the
            time comes soon.
        :raises DriftError: for a receipt of another cluster, or of a topic that was recreated since.
        """
        if isinstance(self.target, Mapping):
            return self._frozen(client, self._own_offsets(client, self.target))
        partitions = self._partitions(client, checkpoint)
        logs = client.log_ranges(partitions, isolation_level=self.isolation_level)
        place = Place.parse(self.target, "target")
        if place.time is None:
            return self._frozen(client, place_offsets(client, place, partitions, logs))
        # Checked only when the target is frozen; a retry uses the frozen target.
        _check_passed(timestamp_ms(place.time))
        since = records_since(client, partitions, timestamp_ms(place.time), logs)
        # Behind a record that is ahead of the clock, there may be records before the target.
        return self._frozen(client, since.offsets | {tp: logs[tp].end for tp in since.ahead})

    def _own_offsets(self, client: OffsetsReader, given: Mapping[str, Any]) -> Offsets:
        """Return the given offsets, or a receipt's, that ``topics`` names; refuse those of other logs."""
        scope = self.selection.scope
        groups = Receipt.parse(given).groups if _is_receipt(given) else ()
        recorded = LogIds.union(each.log_ids for each in groups)
        remedy = "give the receipt of a task that moved the group there"
        refusals = current_logs_refusals(client, parameter_text("target"), recorded, remedy=remedy)
        DriftError.raise_if(refusals)
        targets = {"target": self._target}
        UsageError.raise_if(
            GroupSelection(None, scope).unmatched_names(targets, "the target", partitions=True)
        )
        return {tp: at for tp, at in self._target.items() if tp in scope}

    def _partitions(
        self, client: OffsetsReader, checkpoint: SparkCheckpoint | None
    ) -> Sequence[TopicPartition]:
        """Return the partitions of the named topics, or of those that the checkpoint or the group reads."""
        scope = self.selection.scope
        if self.group_id is not None and not self.checkpoint_location:
            self.selection.scopes()
        if scope.topics is not None:
            return partitions_in_scope(client, scope)
        found = self.positions_in(client, self.read_checkpoint(checkpoint), scope)
        if not any(found.values()):
            raise UsageError(
                "the checkpoint has finished no batch, so its topics are unknown and there is no target to "
                f"freeze: name {parameter_text('topics', ...)}"
            )
        return sorted({tp for each in found.values() for tp in each})

    def _frozen(self, client: OffsetsReader, target: Offsets) -> ReachedWait:
        return replace(self, target=offsets_json(target), cluster=client.cluster_id())

    def find_positions(
        self, client: OffsetsReader, checkpoint: KnownCheckpoint | None
    ) -> Mapping[str, Positions]:
        """Return the positions in the target's topics; a DriftError if it was frozen on another cluster."""
        frozen_on, now = LogIds(self.cluster), LogIds(client.cluster_id())
        remedy = dag_text("clear this task to wait there", "wait again")
        DriftError.raise_if(other_logs_refusals("the target", frozen_on, now, remedy=remedy))
        topics = sorted({tp.topic for tp in self._target})
        return self.positions_in(client, checkpoint, TopicScope(dict.fromkeys(topics), parameter="target"))

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Compare every group or source with the target."""
        target = self._target
        if not positions:
            return self.reading_without_batch(
                reached=False, target=self.target, current={}, remaining=None, lost=None
            )
        lowest = furthest_behind(positions.values(), target)
        # The log end for read_uncommitted, because only a position beyond it is invalid.
        logs = client.log_ranges(target)
        for name, found in positions.items():
            check_in_log(client, name, found, logs)
        short = remaining_offsets(lowest, target, logs, self.tolerance)
        lost = {
            tp: gone
            for tp, end in target.items()
            if (at := lowest[tp]) is not None and (gone := min(end, logs[tp].start) - at) > 0
        }
        unknown = unknown_groups_text(self.groups_without_commits(client, positions))
        value = self.base_json(
            reached=not short and not unknown,
            target=self.target,
            current=offsets_json(lowest),
            remaining=sum(short.values()),
            lost=sum(lost.values()),
        )
        text = _table(target, lowest, logs, short, lost)
        # Deleted records will not be read, and without a position the number of remaining records is unknown.
        known = not lost and all(lowest[tp] is not None for tp in short)
        left = (sum(short.values()), max(short.values(), default=0)) if known else ()
        return Reading(
            not short and not unknown,
            lambda: value,
            f"{text}\n{unknown}" if unknown else text,
            positions=positions,
            remaining=left,
            unknown=unknown,
        )

    @cached_property
    def _target(self) -> Offsets:
        if _is_receipt(self.target):
            return _receipt_targets(
                _parse_receipt(self.target), self.selection.group_ids, self.selection.scope
            )
        return parse_offsets(self.target, parameter_text("target"))


def _read_target(value: object, parameter: str) -> str | dict[str, Any]:
    """Parse a target; return offsets or a receipt as plain JSON, ``latest``, or a time as text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = load_json(value, parameter_text(parameter))
    if _is_receipt(value):
        _parse_receipt(value)
        return dict(value)
    try:
        place = Place.parse(value, parameter)
    except UsageError:
        raise unexpected(parameter, value, _targets()) from None
    if place.offsets is not None:
        return offsets_json(place.offsets)
    return str(place) if place.time is None else iso_time(timestamp_ms(place.time))


def _targets() -> str:
    """Return the accepted targets, for an error text."""
    return (
        f"'latest', {time_example('data_interval_end')}, offsets such as "
        '{"orders": {"0": 42}}, or the receipt of a task that has moved the group'
    )


def _is_receipt(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and "version" in value


def _check_passed(moment: int) -> None:
    """Refuse a time in the future, because records before it may still be written."""
    now = int(time.time() * 1000)
    if moment > now:
        raise UsageError(
            f"{parameter_text('target', iso_time(moment))} is in the future (it is {iso_time(now)}): records "
            "before it may still come; give a time that has passed, or "
            + dag_text("put a sensor before this one that waits for it", "wait for it with 'wait topic'"),
            parameter="target",
            # Up to a minute, because clocks differ and a run may start exactly at its target.
            retriable=moment - now <= 60_000,
        )


def _parse_receipt(value: Mapping[str, Any]) -> Receipt:
    receipt = Receipt.parse(value)
    if receipt.plan_only:
        raise UsageError(
            f"{parameter_text('target')} is the receipt of a plan that was not applied, so its offsets were "
            "not committed; give the receipt of a task that moved the group"
        )
    return receipt


def _receipt_targets(receipt: Receipt, group_ids: Collection[str], scope: TopicScope) -> Offsets:
    """Return the offsets of the named groups of a receipt; for any other group the highest of all groups."""
    named = [receipt.group(group_id) for group_id in group_ids]
    # Without a name, the position is a checkpoint's: its sources are the groups of the receipt.
    are_own = all(each.after for each in named)
    groups = named if named and are_own else receipt.groups
    offsets: dict[TopicPartition, set[int]] = {}
    for group in groups:
        for tp, at in group.after.items():
            offsets.setdefault(tp, set()).add(at)
    differ = [tp for tp, found in offsets.items() if len(found) > 1 and tp in scope]
    if are_own and differ:
        raise UsageError(
            f"{parameter_text('target')} has different offsets for {summarize(differ)} in groups "
            f"{', '.join(repr(each.group_id) for each in groups)}: wait for each group separately, with its "
            f"name as {parameter_text('group_id')}, and {parameter_text('position', 'group')}"
        )
    return {tp: max(found) for tp, found in sorted(offsets.items())}


def _table(target: Offsets, current: Positions, logs: Logs, remaining: Offsets, lost: Offsets) -> str:
    rows: dict[TopicPartition, Sequence[str]] = {}
    for tp, end in target.items():
        note = f"  ({plural(lost[tp], 'record')} lost to retention)" if tp in lost else ""
        note += f"  (the log ends at {logs[tp].end})" if end > logs[tp].end else ""
        rows[tp] = (offset_cell(current[tp]), str(end), f"{remaining.get(tp, 0)}{note}")
    lead = (
        f"{plural(sum(remaining.values()), 'record')} before the target"
        if remaining
        else "the target is reached"
    )
    header = ("CURRENT-OFFSET", "TARGET", "REMAINING")
    return partition_table(lead, header, rows, lambda tp: -remaining.get(tp, 0))
