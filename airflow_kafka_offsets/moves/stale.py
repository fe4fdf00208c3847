"""Refusal to undo a move that other moves or commits have followed: undoing it would undo these too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import committer_text
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import parameter_text


def refuse_stale(
    plan: PipelinePlan,
    moved_to: Mapping[str, Offsets],
    sources_to: Mapping[str, Offsets],
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

    :param moved_to: group -> its offsets after the move; ``sources_to`` likewise for the checkpoint.
    :param archive: archive of the move; ``None`` if it changed no file of a checkpoint.
    :param same_run: whether the move is known to be of this run; otherwise the archive decides.
    """
    # Read after the plan has taken its archive's number: the claim finds any move that begins from now on.
    later = [*ArchivedMoves(checkpoint).in_effect(archive.number)] if checkpoint and archive else []
    same_run = same_run or (archive is not None and metadata.is_same_run(archive.made_by))
    found = [f"move {each} followed" for each in reversed(later) if not metadata.is_same_run(each.made_by)]
    changes: list[tuple[int, int]] = []
    for group_plan in plan.group_plans:
        to = moved_to.get(group_plan.group_id, {})
        maker = None if archive is None else archive.made_by
        found += _commits_of_others(group_plan, to, maker, metadata, same_run=same_run)
        changes += _changes(group_plan.planned_on, group_plan.after)
    if (of := plan.checkpoint_plan) is not None:
        beyond: list[TopicPartition] = []
        of_query: list[tuple[int, int]] = []
        for source, back in of.after.items():
            at = of.before.get(source, {})
            beyond += partitions_moved_on(at, back, sources_to.get(source, {}))
            of_query += _changes(at, back)
        changes = of_query if any(now != back for now, back in of_query) else changes
        if beyond and (found or not same_run):
            found.append(f"the query has finished batch {of.batch_id} and has moved on {summarize(beyond)}")
    if not found or all(now == back for now, back in changes):
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
    notes, refusals = ((text,), ()) if allow_stale else ((), (refusal,))
    if of is not None:
        checkpoint_plan = replace(of, notes=(*of.notes, *notes), refusals=(*of.refusals, *refusals))
        return replace(plan, checkpoint_plan=checkpoint_plan)
    # All refusals are shown together, so the first group's plan may have those of the whole plan.
    first, *others = plan.group_plans
    first = replace(first, notes=(*first.notes, *notes), refusals=(*first.refusals, *refusals))
    return replace(plan, group_plans=[first, *others])


def _commits_of_others(
    group_plan: OffsetPlan,
    moved_to: Offsets,
    maker: CommitMetadata | None,
    metadata: CommitMetadata,
    *,
    same_run: bool,
) -> list[str]:
    """
    Return a sentence for each other origin of commits beyond a move, and of later moves of the group.

    :param maker: the run and task that made the move, if known: an earlier try of it is no later move.
    :param same_run: whether a commit without a run, such as one from a Spark cluster, counts as this run's.
    """
    now, back = group_plan.planned_on, group_plan.after
    beyond = partitions_moved_on(now, back, moved_to)
    of_others: dict[str, list[TopicPartition]] = {}
    for tp in back:
        commit = group_plan.commits.get(tp)
        made = CommitMetadata.of(commit)
        # Within the range of the move, a commit is progress of its recovery, but a reset is not.
        moved = (
            made is not None
            and made.is_move
            and now.get(tp) not in (None, back[tp], moved_to.get(tp))
            and not (maker is not None and maker.is_same_run(made))
        )
        if not moved and tp not in beyond:
            continue
        if not (same_run if made is None or not (made.run or moved) else metadata.is_same_run(made)):
            of_others.setdefault(committer_text(commit) or "another client", []).append(tp)
    return [
        f"group {group_plan.group_id!r} was committed on {summarize(partitions)} by {who}"
        for who, partitions in of_others.items()
    ]


def partitions_moved_on(
    now: Mapping[TopicPartition, int | None], back: Offsets, moved_to: Offsets
) -> list[TopicPartition]:
    """
    Return the partitions whose position neither a move nor its recovery explains.

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


def _changes(now: Mapping[TopicPartition, int | None], back: Offsets) -> list[tuple[int, int]]:
    """Return the current and the restored offset of each partition that has a current offset."""
    return [(at, offset) for tp, offset in back.items() if (at := now.get(tp)) is not None]
