"""May a window's end be committed to its groups, and what is written when it may?"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import BrokerError, PlanRefusedError, WindowMismatchError
from airflow_kafka_offsets.kafka.apply import plan_moves
from airflow_kafka_offsets.model.metadata import CommitMetadata
from airflow_kafka_offsets.model.offset_window import OffsetWindow
from airflow_kafka_offsets.model.offsets import OffsetRange, Offsets, summarize
from airflow_kafka_offsets.model.plan import OffsetPlan, OutOfRangePolicy, check_plans

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)


def plan_window_commits(
    client: OffsetsClient,
    window: OffsetWindow,
    targets: Mapping[str, Offsets],
    *,
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy = "fail",
) -> list[OffsetPlan]:
    """
    Lay a window beside what its groups and the logs hold.

    :param targets: group -> the part of the window's end that it is to hold.
    :param source: where the window comes from, for the receipt.
    :param on_out_of_range: what becomes of an end that is outside the log by now.
    :return: a plan for each group, refused if the group stands neither at the start nor at the end.
    """
    plans = plan_moves(client, targets, source=source, on_out_of_range=on_out_of_range)
    return [replace(plan, refusals=(*plan.refusals, *_refusals(window, plan))) for plan in plans]


def apply_window_commits(
    client: OffsetsClient,
    window: OffsetWindow,
    plans: Sequence[OffsetPlan],
    metadata: CommitMetadata,
    *,
    fenced: bool = True,
) -> None:
    """
    Commit a window to its groups, one after another, each compared again as it is written.

    :param fenced: join each group, so that comparing and writing are one step.
    :raises PlanRefusedError: if one of the plans must not be carried out; nothing was written.
    :raises BrokerError: if a commit failed; says which groups were written.
    """
    check_plans(plans)
    written: list[str] = []
    for plan in plans:
        if not plan.after:
            continue
        try:
            text = metadata.text(len(plan.after))
            client.commit_window(plan.group_id, _part(window, plan), text, fenced=fenced)
            if not fenced:
                # A fenced commit was read back before anybody else could write.
                committed = client.committed(plan.group_id, plan.after)
                plan.verify({tp: commit and commit.offset for tp, commit in committed.items()})
        except (BrokerError, PlanRefusedError) as error:
            if written:
                done = (
                    f"{error}; written before: group {', '.join(written)}; running it again finishes the rest"
                )
                error.args = (done, *error.args[1:])
            raise
        written.append(plan.group_id)
        log.info("Committed and read back: group %s, %d partitions", plan.group_id, len(plan.after))


def _refusals(window: OffsetWindow, plan: OffsetPlan) -> tuple[str, ...]:
    part = _part(window, plan)
    if backwards := [tp for tp, offsets in part.ranges.items() if offsets.end < offsets.start]:
        return (
            f"the log ends before the window starts on {summarize(backwards)}: the topic was recreated, and the end of the log "
            "now is no place that the window has come to; reset the group, or leave the topic out with topics=",
        )
    try:
        part.to_commit(f"group {plan.group_id!r}", plan.before)
    except WindowMismatchError as error:
        return error.refusals
    return ()


def _part(window: OffsetWindow, plan: OffsetPlan) -> OffsetWindow:
    """Return what of the window is in a plan, which may have moved an end into the log."""
    part = window.only(plan.after)
    ends = plan.after
    return replace(
        part, ranges={tp: OffsetRange(offsets.start, ends[tp]) for tp, offsets in part.ranges.items()}
    )
