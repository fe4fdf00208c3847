"""Plans and applies the commit of a window's end to its groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import PlanRefusedError, WindowMismatchError
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import committer_text
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Commits, OffsetRange, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan, PartitionMove
from airflow_kafka_offsets.model.text import escape_controls
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.groups import plan_commits
from airflow_kafka_offsets.moves.write import commit_groups, commit_window
from airflow_kafka_offsets.readings.log_checks import LogCheck, current_logs_refusals
from airflow_kafka_offsets.readings.positions import assign_offsets

log = logging.getLogger(__name__)


def window_targets(window: OffsetWindow, selection: GroupSelection) -> dict[str, Offsets]:
    """Return each group's part of a window's end; refuse names that neither the window nor its plan has."""
    selection, without = selection.restricted_to_window(window.ranges, window.source)
    if without:
        log.info("Not in the window: %s", ", ".join(map(escape_controls, without)))
    return assign_offsets(selection, {"window": window.end}, "the window")


def plan_window_commits(
    client: OffsetsClient,
    window: OffsetWindow,
    targets: Mapping[str, Offsets],
    *,
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy = "fail",
    committed_at: str | None = None,
    allow_new_cluster: bool = False,
    run: CommitMetadata = NO_METADATA,
) -> list[OffsetPlan]:
    """
    Compare a window with its groups' commits and the logs.

    If the window is known to have been committed before, and a group is at the window's end or past it in
    every partition, the group has moved on since. Its plan then writes nothing.

    :param committed_at: when this window was committed to all groups; ``None`` if unknown.
    :param run: metadata of the commits, which names the run.
    :return: a plan for each group. It has a refusal if the group is neither at the start nor at the end, if
        another run has committed the end, or if a topic was recreated since the window was planned.
    """
    part = window.only(tp for offsets in targets.values() for tp in offsets)
    elsewhere: list[str] = []
    if not allow_new_cluster:
        elsewhere = current_logs_refusals(client, "the window", part.log_ids, remedy="trigger a new run")
    group_plans = {}
    for group, offsets in targets.items() if committed_at and not elsewhere else ():
        if done := _plan_after_commit(client, group, window.only(offsets), source, str(committed_at)):
            group_plans[group] = done
    left = {group: offsets for group, offsets in targets.items() if group not in group_plans}
    check = LogCheck(allow_new_cluster)
    for plan in plan_commits(client, left, source=source, on_out_of_range=on_out_of_range, log_check=check):
        part = _part(window, plan)
        refusals = [*elsewhere, *plan.refusals, *_refusals(part, plan)]
        if not committed_at:
            refusals += _read_by_others(part, plan.group_id, plan.commits, run)
        group_plans[plan.group_id] = replace(plan, refusals=tuple(refusals))
    return [group_plans[group] for group in targets]


def apply_window(
    client: OffsetsClient, plan: PipelinePlan, metadata: CommitMetadata, window: OffsetWindow, *, fenced: bool
) -> dict[str, Any]:
    """
    Check the plans of a window, commit its end to each group and read the commits back.

    Each group is compared with the window's start again when it is written.

    :param fenced: see :func:`~airflow_kafka_offsets.moves.write.commit_window`.
    :return: the receipt; partitions that another client has already committed to the end do not count as
        moved.
    """
    applied = {group_plan.group_id: group_plan for group_plan in plan.group_plans}

    def write(client: OffsetsClient, plan: OffsetPlan, texts: Mapping[str, str]) -> None:
        part = _part(window, plan)
        check = partial(check_not_read_by_others, part, plan.group_id, metadata)
        # If the group was at the end before, the plan has already compared it.
        again = all(at == part.end[tp] for tp, at in plan.committed.items())
        moved = commit_window(
            client, plan.group_id, part, texts, fenced=fenced, check=None if again else check
        )
        applied[plan.group_id] = plan.with_before({tp: at for tp, at in part.end.items() if tp not in moved})

    plan.check()
    commit_groups(client, plan.to_write, metadata, write)
    plan = replace(plan, group_plans=[*applied.values()])
    return plan.make_receipt(verified=not plan.is_empty)


def check_not_read_by_others(
    window: OffsetWindow, group_id: str, run: CommitMetadata, commits: Commits
) -> None:
    """Refuse a window if another run has read the same records and has committed them."""
    PlanRefusedError.raise_if(_read_by_others(window, group_id, commits, run))


def _plan_after_commit(
    client: OffsetsClient, group_id: str, part: OffsetWindow, source: Mapping[str, Any], committed_at: str
) -> OffsetPlan | None:
    """Return the plan of a group that has moved on since the window was committed; ``None`` if it has not."""
    commits = client.committed(group_id, part.ranges)
    now = {tp: commit.offset for tp, commit in commits.items() if commit is not None}
    # A group exactly at the end is committed again too, so that Kafka keeps its offsets.
    if now.keys() != part.end.keys() or now == part.end or not part.passed(now):
        return None
    logs = client.log_ranges(now)
    # An offset beyond the log end belongs to another log, and proves nothing.
    if any(offset > logs[tp].end for tp, offset in now.items()):
        return None
    movers = {
        who for tp, offset in now.items() if offset > part.end[tp] and (who := committer_text(commits[tp]))
    }
    by = f", moved by {', '.join(sorted(movers))}" if movers else ""
    return OffsetPlan(
        group_id,
        tuple(PartitionMove(tp, offset, offset, logs[tp]) for tp, offset in sorted(now.items())),
        {**source, "committed_at": committed_at},
        notes=(
            f"nothing to do: this task has committed the window at {committed_at}, and the group has moved "
            f"on since{by}",
        ),
        commits=commits,
        already_done=True,
    )


def _refusals(part: OffsetWindow, group_plan: OffsetPlan) -> tuple[str, ...]:
    if backwards := [tp for tp, offsets in part.ranges.items() if offsets.end < offsets.start]:
        return (
            f"the log ends before the window starts on {summarize(backwards)}: the topic was recreated, or "
            "an unclean leader election has cut off its log; reset the group, or leave the topic out with "
            f"{parameter_text('topics', ...)}",
        )
    group = group_plan.group_id
    try:
        part.to_commit(f"group {group!r}", group_plan.commits)
    except WindowMismatchError as error:
        planned = part.source.get("group_id", group)
        groups = planned.values() if isinstance(planned, Mapping) else [planned]
        has_commits = all(offset is not None for offset, *_ in error.found.values())
        if group in groups or (planned is None and has_commits):
            return error.refusals
        of = f"for {parameter_text('group_id', planned)}" if planned else "without a group"
        return (
            f"the window was planned {of}, and group {group!r} is not at its start ({error.differences}): "
            f"give the plan and the commit the same {parameter_text('group_id')}",
        )
    return ()


def _read_by_others(part: OffsetWindow, group_id: str, commits: Commits, run: CommitMetadata) -> list[str]:
    """
    Return why a window is not committed: another run has read the same records, and has committed them.

    Windows between times or offsets may have the same records on purpose, as after a trigger by hand.
    """
    if part.source.get("start") != "committed":
        return []

    def is_other(made: CommitMetadata) -> bool:
        if made.is_move or not (made.run and run.run):
            return False
        # Runs of two DAGs with the same schedule have the same id.
        of_planner = made.run == part.source.get("run_id") and (
            made.dag in ("", part.source.get("dag_id", made.dag))
        )
        return not (of_planner or run.is_same_run(made))

    makers: dict[str, list[TopicPartition]] = {}
    for tp, offsets in part.ranges.items():
        commit = commits.get(tp)
        at_end = commit is not None and commit.offset == offsets.end
        if offsets.size and at_end and is_other(CommitMetadata.of(commit)):
            makers.setdefault(committer_text(commit), []).append(tp)
    return [
        f"group {group_id!r} is at the end of these ranges on {summarize(partitions)}, committed by {maker}: "
        "that run has read the same records, because both windows were planned before either was committed. "
        "Let one DAG, with max_active_runs=1, read with the group, and remove the output of this run unless "
        "it replaces that of the other run"
        for maker, partitions in makers.items()
    ]


def _part(window: OffsetWindow, group_plan: OffsetPlan) -> OffsetWindow:
    """Return the part of the window in a plan, with the plan's ends, which may be clamped to the log."""
    part, ends = window.only(group_plan.after), group_plan.after
    ranges = {tp: OffsetRange(offsets.start, ends[tp]) for tp, offsets in part.ranges.items()}
    return replace(part, ranges=ranges)
