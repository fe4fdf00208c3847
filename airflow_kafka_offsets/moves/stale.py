"""Refusal to undo a move that other moves or commits have followed: undoing it would undo these too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import committer_text
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, flat, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import parameter_text

K = TypeVar("K")


def with_stale_refusal(
    plan: PipelinePlan,
    receipt: Receipt,
    *,
    checkpoint: SparkCheckpoint | None,
    archive: ArchivedMove | None,
    metadata: CommitMetadata,
    same_run: bool = False,
    allow_stale: bool = False,
) -> PipelinePlan:
    """
    Add a refusal to a plan that undoes a move which other moves or commits have followed.

    With ``allow_stale``, the plan gets a note instead. Moves and commits of the restore's own run do not
    count, because the run undoes them on purpose.

    :param archive: archive of the move; ``None`` if it changed no file of a checkpoint.
    :param same_run: whether the move is known to be of this run; otherwise the archive decides.
    """
    # Read after the plan has taken its archive's number: the claim finds any move that begins from now on.
    later = [*ArchivedMoves(checkpoint).in_effect(archive.number)] if checkpoint and archive else []
    found = [f"move {each} followed" for each in reversed(later) if not metadata.is_same_run(each.made_by)]
    maker = NO_METADATA if archive is None else archive.made_by
    same_run = same_run or metadata.is_same_run(maker)
    for group_plan in plan.group_plans:
        moved_to = receipt.group(group_plan.group_id).after
        found += _commits_of_others(group_plan, moved_to, maker, metadata, same_run=same_run)
    restore, moved = plan.checkpoint_plan, receipt.checkpoint
    if restore and moved and (found or not same_run):
        beyond = moved_on(flat(restore.before), flat(restore.after), flat(moved.after))
        has_run = f"the query has finished batch {restore.batch_id} and has moved on "
        found += [has_run + summarize(tp for _, tp in beyond)] if beyond else []
    changes = _changes(plan)
    if not found or not changes:
        return plan
    text = (
        f"the pipeline has continued since {archive.name if archive else 'the move of the receipt'}: "
        f"{'; '.join(found)}. Undoing that move reads "
        f"{plural(sum(max(0, now - back) for now, back in changes), 'record')} again"
    )
    if skipped := sum(max(0, back - now) for now, back in changes):
        text += f", and skips {skipped:,}"
    remedy = "undo the newest move, reset to the position that you want, or set "
    refusal = f"{text}: {remedy}{parameter_text('allow_stale', True)}"
    # All refusals are shown together, so the first group's plan may have those of the whole plan.
    part = restore or plan.group_plans[0]
    if allow_stale:
        part = replace(part, notes=(*part.notes, text))
    else:
        part = replace(part, refusals=(*part.refusals, refusal))
    if isinstance(part, CheckpointPlan):
        return replace(plan, checkpoint_plan=part)
    return replace(plan, group_plans=[part, *plan.group_plans[1:]])


def _changes(plan: PipelinePlan) -> list[tuple[int, int]]:
    """Return the current and the restored offsets that differ: the query's, else its groups'."""
    restore, groups = plan.checkpoint_plan, plan.group_plans
    query = (flat(restore.before if restore else {}), flat(restore.after if restore else {}))
    of_groups = (flat({each.group_id: each.committed for each in groups}), flat(offsets_after(groups)))
    return _differing(*query) or _differing(*of_groups)


def _differing(now: Mapping[K, int | None], back: Mapping[K, int]) -> list[tuple[int, int]]:
    return [(at, to) for key, to in back.items() if (at := now.get(key)) is not None and at != to]


def _commits_of_others(
    group_plan: OffsetPlan,
    moved_to: Offsets,
    maker: CommitMetadata,
    metadata: CommitMetadata,
    *,
    same_run: bool,
) -> list[str]:
    """
    Return a sentence for each other origin of commits beyond a move, and of later moves of the group.

    :param maker: the run and task that made the move, if known: an earlier try of it is no later move.
    :param same_run: whether a commit without a run, such as one from a Spark cluster, counts as this run's.
    """
    now, back = group_plan.committed, group_plan.after
    beyond = moved_on(now, back, moved_to)
    of_others: dict[str, list[TopicPartition]] = {}
    for tp in back:
        commit = group_plan.commits.get(tp)
        made = CommitMetadata.of(commit)
        # Within the range of the move, a commit is progress of its recovery, but a reset is not.
        elsewhere = now.get(tp) not in (None, back[tp], moved_to.get(tp))
        moved = made.is_move and elsewhere and not maker.is_same_run(made)
        if not moved and tp not in beyond:
            continue
        if not (metadata.is_same_run(made) if made.run or moved else same_run):
            of_others.setdefault(committer_text(commit) or "another client", []).append(tp)
    return [
        f"group {group_plan.group_id!r} was committed on {summarize(partitions)} by {who}"
        for who, partitions in of_others.items()
    ]


def moved_on(now: Mapping[K, int | None], back: Mapping[K, int], moved_to: Mapping[K, int]) -> list[K]:
    """
    Return the partitions, or those of sources, whose position neither a move nor its recovery explains.

    After a move back, a position between its two ends is that of an unfinished recovery, whose records were
    already read once. A move forward leads to no position in between.

    :param back: the offsets before the move, which an undo would restore.
    :param moved_to: the offsets after the move.
    """
    moves = {tp: (before, moved_to.get(tp, before)) for tp, before in back.items()}
    return [
        tp
        for tp, (before, to) in moves.items()
        if (at := now.get(tp)) is not None and at not in (before, to) and not to < at < before
    ]
