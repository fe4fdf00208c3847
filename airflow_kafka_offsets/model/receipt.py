"""Receipts of moves, as plain JSON; stored before the first write, so that a restore has the old offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.formats import log_json, offsets_json, parse_offsets, parse_positions
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.names import parse_stored_group
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition, by_partition, summarize
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.table import times_json
from airflow_kafka_offsets.model.text import DescribeValue, escape_controls, plural, shorten, size_error

RECEIPT_VERSION = 1
CONNECTION_IDS = ("kafka_config_id", "checkpoint_conn_id")
"""Keys of the ids of the Airflow connections that a task uses, in its receipt."""


def make_receipt(
    group_plans: Sequence[OffsetPlan], *, plan_only: bool = False, verified: bool = False
) -> dict[str, Any]:
    """
    Return plans that are applied together as one receipt: plain JSON with string keys.

    For one group: ``version``, ``group_id``, ``before``, ``after``, ``log_start``, ``log_end`` (each
    ``{topic: {partition: offset}}``, ``null`` = no commit), ``logs`` (the ids of ``cluster`` and ``topics``),
    ``changed`` (partitions), ``moved_by`` (offsets), ``plan_only``, ``verified`` (whether the commit was read
    back), ``source``, ``skipped``, ``clamped`` and ``lost`` as in :class:`OffsetPlan`, and ``times`` of the
    records in the shown partitions, if looked up. For several groups: the totals, and ``groups``, their
    receipts.
    """
    each = [_group_receipt(plan, plan_only, verified) for plan in group_plans]
    if len(each) == 1:
        return each[0]
    return {
        "version": RECEIPT_VERSION,
        "groups": each,
        "changed": sum(group_plan.changed for group_plan in group_plans),
        "moved_by": sum(group_plan.moved_by for group_plan in group_plans),
        "plan_only": plan_only,
        "verified": verified,
        "source": dict(group_plans[0].source) if group_plans else {},
        "lost": sum(group_plan.lost for group_plan in group_plans),
    }


def check_restorable(group_plans: Sequence[OffsetPlan]) -> None:
    """Refuse plans whose receipt is too large to read back: a move must be restorable before it starts."""
    if refusal := size_error("the receipt", json.dumps(make_receipt(group_plans))):
        partitions = sum(len(group_plan.moves) + len(group_plan.skipped) for group_plan in group_plans)
        raise PlanRefusedError(
            f"{partitions:,} partitions are too many for one move, because it could not be restored "
            f"({refusal.partition(': it is')[0]}): name fewer groups or topics at once"
        )


@dataclass(frozen=True)
class GroupReceipt:
    """
    One group's part of a receipt.

    :param log_ids: unknown in a receipt of an earlier version.
    :param skipped: the partitions that were left alone, with their offsets.
    :param clamped: the partitions that moved to an end of their log, with the requested offsets.
    :param times: ``before`` and ``after`` -> the known timestamps of the records at these offsets.
    """

    group_id: str
    before: Positions
    after: Offsets
    log_ids: LogIds = UNKNOWN_LOGS
    skipped: Positions = field(default_factory=dict)
    clamped: Positions = field(default_factory=dict)
    log_start: Positions = field(default_factory=dict)
    log_end: Positions = field(default_factory=dict)
    times: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: object, *, describe: DescribeValue = shorten) -> GroupReceipt:
        """Read one group's part of a receipt."""
        known: Mapping[str, Any] = _mapping(value)
        # Other results name a group too: a restore of them would find nothing to do, and end well.
        # The receipt of a deletion has no "after".
        if not isinstance(known.get("group_id"), str) or not isinstance(known.get("before"), Mapping):
            raise OffsetsFormatError(
                f"receipt: found {describe(value)}; expected one group's receipt, with its offsets before"
            )
        # A plan with an empty scope has no partitions.
        after = known.get("after")
        positions = {
            name: parse_positions(known[name], f"receipt, {name}", describe=describe)
            if known.get(name)
            else {}
            for name in ("before", "skipped", "clamped", "log_start", "log_end")
        }
        return cls(
            parse_stored_group(known["group_id"], "receipt, group_id"),
            after=parse_offsets(after, "receipt, after", describe=describe) if after else {},
            log_ids=LogIds.parse(known.get("logs"), "receipt, logs", describe=describe),
            times=_mapping(known.get("times")),
            **positions,
        )

    def time(self, which: str, tp: TopicPartition) -> str | None:
        """Return the time of the record at the offset ``before`` or ``after`` the move, if it was kept."""
        found = _mapping(_mapping(self.times.get(which)).get(tp.topic)).get(str(tp.partition))
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Receipt:
    """
    A receipt that was read.

    :param plan_only: whether it is of a plan that was only shown.
    :param verified: whether the commits were read back; a receipt is stored before the first write.
    :param source: where the offsets are from.
    :param lost: records that retention had deleted before they were requested.
    :param plan: digest of the saved plan that was applied; empty without one.
    :param names: the names of the pipeline, in the receipt of a reset or failover task, or of a saved plan.
    """

    groups: tuple[GroupReceipt, ...]
    checkpoint: CheckpointPlan | None = None
    plan_only: bool = False
    verified: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)
    lost: int = 0
    plan: str = ""
    names: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: object, *, describe: DescribeValue = shorten) -> Receipt:
        """Read the receipt of a plan; any other value raises an OffsetsFormatError."""
        if not isinstance(value, Mapping) or value.get("version") != RECEIPT_VERSION:
            raise OffsetsFormatError(
                f"found {describe(value)}; expected a receipt of version {RECEIPT_VERSION}, as an operator "
                "returns it"
            )
        parts, moved = value.get("groups", [value]), value.get("checkpoint")
        if not isinstance(parts, Sequence) or isinstance(parts, str) or not (parts or moved is not None):
            raise OffsetsFormatError(f"receipt: found {describe(parts)}; expected the list of groups")
        groups = tuple(GroupReceipt.parse(part, describe=describe) for part in parts)
        lost, plan = value.get("lost"), value.get("plan")
        return cls(
            groups,
            None if moved is None else CheckpointPlan.parse(moved, describe=describe),
            # Either may say so: the receipt of a checkpoint alone has no group.
            any(bool(each.get("plan_only")) for each in (value, *parts)),
            value.get("verified") is True,
            _mapping(value.get("source")),
            lost if isinstance(lost, int) else 0,
            plan if isinstance(plan, str) else "",
            _mapping(value.get("names")),
        )

    @property
    def log_ids(self) -> LogIds:
        """Ids of the cluster and the topics of the offsets."""
        of_checkpoint = [] if self.checkpoint is None else [self.checkpoint.log_ids]
        return LogIds.union([*of_checkpoint, *(group.log_ids for group in self.groups)])

    def group(self, group_id: str) -> GroupReceipt:
        """Return a group's part; one without partitions if the receipt does not have the group."""
        found = (group for group in self.groups if group.group_id == group_id)
        return next(found, GroupReceipt(group_id, {}, {}))

    def moving(self) -> Receipt:
        """Return the receipt without the groups that it leaves alone."""
        return replace(self, groups=tuple(group for group in self.groups if group.after))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _group_receipt(plan: OffsetPlan, plan_only: bool, verified: bool) -> dict[str, Any]:
    shown, _ = plan.table_moves()
    times = {"times": times_json(plan.times, (move[:3] for move in shown))} if plan.times else {}
    return {
        "version": RECEIPT_VERSION,
        "group_id": plan.group_id,
        "before": offsets_json(plan.before),
        "after": offsets_json(plan.after),
        **log_json({move.topic_partition: move.log for move in plan.moves}),
        "logs": plan.log_ids.as_json(),
        "changed": plan.changed,
        "moved_by": plan.moved_by,
        "plan_only": plan_only,
        "verified": verified,
        "source": dict(plan.source),
        "skipped": offsets_json(plan.skipped),
        "clamped": offsets_json(plan.clamped),
        "lost": plan.lost,
        **times,
    }


def outcome_lines(value: Mapping[str, Any]) -> list[str]:
    """Return a receipt's outcome as lines for a terminal: its checkpoint and its groups."""
    lines = []
    if (moved := value.get("checkpoint")) is not None:
        archive = moved["archive"]
        did = (
            f"was moved ({moved['kind']}) and read back; archive {archive}" if archive else "was not changed"
        )
        lines.append(f"checkpoint {escape_controls(moved['location'])} {did}")
    for group in value.get("groups", [value]):
        partitions = by_partition(group["after"])
        did = "nothing was committed"
        if partitions:
            did = (
                f"{plural(len(partitions), 'partition')} committed and read back ({summarize(partitions)}), "
                f"{group['changed']} changed, moved by {group['moved_by']:+d} offsets"
            )
        lines.append(f"group {escape_controls(group['group_id'])}: {did}")
    return lines
