"""Judges a recovery by its groups, its checkpoint and its moves; plans for tasks whose work is done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import is_same_location
from airflow_kafka_offsets.model.offsets import flat
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.recovery import (
    MovedCheckpoint,
    Recovery,
    RecoveryVerdict,
    committed_by_others,
    judge,
)
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.groups import plan_commits
from airflow_kafka_offsets.readings.positions import group_commits


def judge_recovery(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: Receipt, recovery: Recovery
) -> RecoveryVerdict:
    """Judge a recovery by its reset's receipt, see :func:`~airflow_kafka_offsets.model.recovery.judge`."""
    # A group that the reset left alone needs no restore.
    groups = receipt.moving().groups
    moved = None
    if receipt.checkpoint is not None:
        moved = _read_moved_checkpoint(client, checkpoint, receipt.checkpoint, recovery.restore)
    commits = {group.group_id: client.committed(group.group_id, group.after) for group in groups}
    verdict = judge(groups, commits, moved, recovery)
    if receipt.verified:
        return verdict
    # The reset was marked while it ran. It may have moved nothing, and then the positions prove nothing.
    ended = "the reset has ended before it read its offsets back"
    return replace(verdict, shortfalls=(ended, *verdict.shortfalls))


def _read_moved_checkpoint(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    receipt: CheckpointPlan,
    metadata: CommitMetadata,
) -> MovedCheckpoint:
    """Return the current state of a receipt's checkpoint and of its move."""
    made = MovedCheckpoint(receipt.location, receipt.before, receipt.after)
    # The DAG was edited since the reset: this reset never moved the checkpoint that the DAG names now.
    if checkpoint is None or not is_same_location(checkpoint.location, receipt.location):
        names = "none" if checkpoint is None else checkpoint.location
        command = f"group restore GROUP --checkpoint {receipt.location} --archive {receipt.archive} --execute"
        parameter = parameter_text("checkpoint_location")
        why = f"{parameter} now names {names}; to undo the move, run 'airflow-kafka-offsets {command}'"
        return replace(made, not_restorable=f"{made.name} is not put back: {why}")
    state = checkpoint.read()
    # The location has the checkpoint of a new query: that query never saw the move, and the archive has files
    # of the old query's batches.
    if state.query_id != receipt.query_id:
        why = (
            f"the receipt is of query {shorten(receipt.query_id)}, but the checkpoint is now of query "
            f"{state.query_id}"
        )
        return replace(made, not_restorable=f"{made.name} is not put back: {why}: it was replaced since")
    moves = ArchivedMoves(checkpoint)
    mine = moves.of_receipt(receipt)
    made = replace(made, now=state.kafka_offsets)
    if mine is None:
        return made
    leftover = tuple(
        f"{made.name}: this task does not undo move {each} of the same run"
        for each in moves
        if each.number < mine.number and _left_behind(each, mine, state)
    )
    made = replace(made, number=mine.number, made_by=mine.made_by.identity, other_moves=leftover)
    if mine.undone:
        restoring_move = moves.restore_of(mine)
        # An earlier try of this task has undone the move, but its result was lost.
        if restoring_move is not None and metadata.is_same_instance(restoring_move.made_by):
            again = _moved_again(made, moves, restoring_move)
            return replace(made, restored=True, not_restorable=again)
        return replace(
            made,
            not_restorable=f"{made.name}: move {mine} was undone"
            f"{f' by {restoring_move}' if restoring_move else ''}, and the reset has not run since, so no "
            "record was read again: clear the reset too (with Downstream), or trigger a new run",
        )
    if again := _moved_again(made, moves, mine):
        return replace(made, not_restorable=again)
    # Without records to read, the query has no work and finishes no batch.
    return replace(made, has_worked=mine.has_finished_batch(state) or not _unread(client, receipt))


def _moved_again(made: MovedCheckpoint, moves: ArchivedMoves, move: ArchivedMove) -> str:
    """Return that a later move is in effect; empty if none is."""
    newer = next(moves.in_effect(move.number), None)
    return f"{made.name} was moved again by {newer}, and is not put back" if newer else ""


def _left_behind(earlier: ArchivedMove, mine: ArchivedMove, state: CheckpointState) -> bool:
    """Whether an earlier move of the same run would remain in effect after undoing the later one."""
    if earlier.undone or not mine.made_by.is_same_run(earlier.made_by):
        return False
    before, now = flat(mine.before), flat(state.kafka_offsets)
    goals = flat(earlier.before).items()
    return any(max(before.get(key, 0), now.get(key, 0)) < offset for key, offset in goals)


def _unread(client: OffsetsClient, receipt: CheckpointPlan) -> bool:
    """Whether there are records after the offsets to which a checkpoint was moved."""
    to = {tp: offset for offsets in receipt.after.values() for tp, offset in offsets.items()}
    return any(to[tp] < found.end for tp, found in client.log_ranges(to).items())


def plan_without_move(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    selection: GroupSelection,
    movers: Collection[str],
    work: Sequence[str],
    *,
    moved: str | None,
) -> PipelinePlan:
    """
    Return the plan of a reset that moves nothing because the tasks after it have succeeded.

    :param movers: identities of the tasks that reset and restore.
    :param work: the tasks that have succeeded.
    :param moved: the checkpoint that the reset is known to have moved, maybe without a change of its files.
    :raises PlanRefusedError: if none of the movers has moved the checkpoint, or if a group was not committed
        since by another task.
    """
    clear = f"clear {'it' if len(work) == 1 else 'them'} too, or trigger a new run"
    if checkpoint is not None:
        moves = ArchivedMoves(checkpoint)
        moves.refuse_unfinished()
        if moved != checkpoint.location and not any(each.made_by.identity in movers for each in moves):
            raise PlanRefusedError(
                f"{', '.join(work)} succeeded in this run, and no reset of this run has moved "
                f"{checkpoint.location}: {clear}"
            )
    sources = None if checkpoint is None else checkpoint.read().kafka_offsets
    made = {
        group: {
            tp: commit for tp, commit in group_commits(client, group, scope).items() if commit is not None
        }
        for group, scope in selection.scopes(sources).items()
    }
    unfinished = [group for group, commits in made.items() if not committed_by_others(commits, movers)]
    if unfinished:
        raise PlanRefusedError(
            f"{', '.join(work)} succeeded in this run, and nothing was committed to group "
            f"{', '.join(unfinished)} since the reset or its restore: {clear}"
        )
    targets = {group: {tp: each.offset for tp, each in commits.items()} for group, commits in made.items()}
    # Nothing moves, so a position out of range must not refuse the plan.
    return PipelinePlan(plan_commits(client, targets, source={"kept": list(work)}, on_out_of_range="skip"))


def plan_of_earlier_restore(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: Receipt, metadata: CommitMetadata
) -> PipelinePlan | None:
    """Return the plan that an earlier try of a restore task has applied; ``None`` if no try has finished."""
    if receipt.checkpoint is None or checkpoint is None:
        return None
    moves = ArchivedMoves(checkpoint)
    moved = moves.of_receipt(receipt.checkpoint)
    restoring_move = None if moved is None else moves.restore_of(moved)
    if moved is None or restoring_move is None or not metadata.is_same_instance(restoring_move.made_by):
        return None
    before, after = moves.group_offsets(restoring_move)
    group_plans = plan_commits(client, after, source={"restore": "receipt"}, on_out_of_range="skip")
    return PipelinePlan.combine(group_plans, restoring_move).with_before(before)
