"""
Receipts of moves, which record a move and allow to undo it.

A *receipt* is a plan as plain JSON. It is stored before the first write, so that a restore has the
overwritten offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.formats import log_json, offsets_json, parse_offsets, parse_positions
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.names import parse_stored_group
from airflow_kafka_offsets.model.offsets import Offsets, Positions, by_partition, summarize
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.table import times_json
from airflow_kafka_offsets.model.text import DescribeValue, escape_controls, shorten, size_error

RECEIPT_VERSION = 1
CONNECTION_IDS = ("kafka_config_id", "checkpoint_conn_id")
"""Keys of the ids of the Airflow connections that a task uses, in its receipt."""

_SURELY_READABLE = 10_000


def make_receipt(
    group_plans: Sequence[OffsetPlan], *, plan_only: bool = False, verified: bool = False
) -> dict[str, Any]:
    """
    Return plans that are applied together as one receipt: plain JSON with string keys.

    For one group: ``version``, ``group_id``, ``before``, ``after``, ``log_start``, ``log_end`` (each
    ``{topic: {partition: offset}}``, ``null`` = no commit), ``logs`` (the ids of ``cluster`` and ``topics``),
    ``changed`` (partitions), ``moved_by`` (offsets), ``plan_only``, ``verified`` (whether the commit was read
    back), ``source``, ``skipped``, ``clamped`` and ``lost`` (see
    :class:`~airflow_kafka_offsets.model.plan.OffsetPlan`), and ``times``: timestamps of the records in the
        partitions that the table shows, if they were looked up. For several groups: the totals, and
        ``groups``, a list of the groups' receipts.
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
    partitions = sum(len(group_plan.moves) + len(group_plan.skipped) for group_plan in group_plans)
    if partitions > _SURELY_READABLE and (
        refusal := size_error("the receipt", json.dumps(make_receipt(group_plans)))
    ):
        raise PlanRefusedError(
            f"{partitions:,} partitions are too many for one move, because it could not be restored "
            f"({refusal.partition(': it is')[0]}): name fewer groups or topics at once"
        )


@dataclass(frozen=True)
class GroupReceipt:
    """One group's part of a receipt."""

    group_id: str
    before: Positions
    after: Offsets
    plan_only: bool
    log_ids: LogIds = UNKNOWN_LOGS
    """Ids of the cluster and the topics of the offsets; unknown in a receipt of an earlier version."""


def read_receipt(value: object, *, describe: DescribeValue = shorten) -> tuple[GroupReceipt, ...]:
    """Read the result of :func:`make_receipt`; any other value raises an OffsetsFormatError."""
    if not isinstance(value, Mapping) or value.get("version") != RECEIPT_VERSION:
        raise OffsetsFormatError(
            f"found {describe(value)}; expected a receipt of version {RECEIPT_VERSION}, as an operator "
            "returns it"
        )
    groups = value.get("groups", [value])
    if not isinstance(groups, Sequence) or isinstance(groups, str) or not (groups or "checkpoint" in value):
        raise OffsetsFormatError(f"receipt: found {describe(groups)}; expected the list of groups")
    result = []
    for group in groups:
        if not isinstance(group, Mapping) or not isinstance(group.get("group_id"), str):
            raise OffsetsFormatError(f"receipt: found {describe(group)}; expected one group's receipt")
        # A plan with an empty scope has no partitions.
        before, after = group.get("before"), group.get("after")
        result.append(
            GroupReceipt(
                parse_stored_group(group["group_id"], "receipt, group_id"),
                parse_positions(before, "receipt, before", describe=describe) if before else {},
                parse_offsets(after, "receipt, after", describe=describe) if after else {},
                bool(group.get("plan_only")),
                LogIds.parse(group.get("logs"), "receipt, logs", describe=describe),
            )
        )
    return tuple(result)


def is_plan_only(receipt: object) -> bool:
    """Return whether a receipt is of a plan that was only shown; that of a checkpoint alone has no group."""
    groups = read_receipt(receipt)
    only_shown = isinstance(receipt, Mapping) and bool(receipt.get("plan_only"))
    return only_shown or any(group.plan_only for group in groups)


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
                f"{len(partitions)} partitions were committed and read back ({summarize(partitions)}), "
                f"{group['changed']} of them changed, moved by {group['moved_by']:+d} offsets"
            )
        lines.append(f"group {escape_controls(group['group_id'])}: {did}")
    return lines
