"""Reads what a recovery is judged by: its groups, its checkpoint, and the moves since its reset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import Archive, read_archives
from airflow_kafka_offsets.checkpoint.open_moves import discarded_by, has_finished_since
from airflow_kafka_offsets.model.checkpoint_plan import (
    CheckpointPlan,
    CheckpointReceipt,
    read_checkpoint_receipt,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupOffsets, Groups
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.recovery import Judgement, MovedCheckpoint, Recovery, committed_since, judge
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.moves.commit import plan_commits
from airflow_kafka_offsets.moves.restore import archive_of, undo_of
from airflow_kafka_offsets.readings.known_moves import kept_groups
from airflow_kafka_offsets.readings.positions import group_positions, last_commits

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def judge_recovery(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: object, recovery: Recovery
) -> Judgement:
    """Judge a recovery by its reset's receipt, see :func:`~airflow_kafka_offsets.model.recovery.judge`."""
    # A group that the reset left alone has nothing to be put back.
    groups = [group for group in read_receipt(receipt) if group.after]
    kept = read_checkpoint_receipt(receipt)
    moved = None if kept is None else _moved(client, checkpoint, kept, recovery.restore)
    commits = {group.group_id: last_commits(client, group.group_id, group.after) for group in groups}
    return judge(groups, commits, moved, recovery)


def _moved(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, kept: CheckpointReceipt, by: CommitMetadata
) -> MovedCheckpoint:
    """Return where the checkpoint of a receipt is, and what has become of its move."""
    made = MovedCheckpoint(kept.location, kept.before, kept.after)
    # The DAG was edited since: the checkpoint that it names now was never moved by this reset.
    if checkpoint is None or checkpoint.location != kept.location:
        names = "none" if checkpoint is None else checkpoint.location
        command = f"group restore GROUP --checkpoint {kept.location} --archive {kept.archive} --execute"
        why = f"checkpoint_location names {names} by now; 'airflow-kafka-offsets {command}' takes it back"
        return replace(made, lost=f"{made.name} is not put back: {why}")
    state = checkpoint.read()
    # Same place, new query: it never saw the move, and the archive keeps files of the old one's batches.
    if state.query_id != kept.query_id:
        why = f"the receipt is of query {shorten(kept.query_id)}, and it is of query {state.query_id} by now"
        return replace(made, lost=f"{made.name} is not put back: {why}: the checkpoint was replaced since")
    archives = read_archives(checkpoint)
    mine = archive_of(archives, kept)
    made = replace(made, now=state.kafka_offsets)
    if mine is None:
        return made
    leftover = tuple(
        f"{made.name}: move {each} of the same run is not taken back by this task"
        for each in archives
        if each.number < mine.number and _left_behind(each, mine, state)
    )
    made = replace(made, number=mine.number, by=mine.by.identity, leftover=leftover)
    if mine.undone:
        undo = undo_of(archives, mine)
        # This very task has done it, in a try whose result was lost: done, and not somebody else's doing.
        if undo is not None and undo.by.token and undo.by.token == by.token:
            return replace(made, restored=True)
        return replace(
            made,
            lost=f"{made.name}: move {mine} was taken back{f' by {undo}' if undo else ''}, and the reset has "
            "not run since, so that nothing was read again: clear the reset as well (with Downstream), or "
            "trigger a new run",
        )
    later = {each.name: each for each in archives if each.number >= mine.number}
    newer = [
        each
        for name, each in later.items()
        # A move that was taken back, and the move that took it back, leave the checkpoint as if neither had
        # been.
        if name != mine.name and not each.undone and each.undoes not in later
    ]
    if newer:
        return replace(made, lost=f"{made.name} was moved again by {newer[-1]}, and is not put back")
    # No batch since, but no record to read either: there was no work to do.
    return replace(made, worked=has_finished_since(state, mine) or not _unread(client, kept))


def _left_behind(earlier: Archive, mine: Archive, state: CheckpointState) -> bool:
    """Whether an earlier move of the same run would still be there if the later one was taken back."""
    return (
        mine.by.same_run(earlier.by)
        and not earlier.undone
        and any(
            max(at.get(source, {}).get(tp, 0) for at in (mine.before, state.kafka_offsets)) < offset
            for source, offsets in earlier.before.items()
            for tp, offset in offsets.items()
        )
    )


def _unread(client: OffsetsClient, kept: CheckpointReceipt) -> bool:
    """Whether there are records after the offsets that a checkpoint was moved to."""
    to = {tp: offset for offsets in kept.after.values() for tp, offset in offsets.items()}
    return any(to[tp] < found.end for tp, found in client.log_ranges(to).items())


def plan_kept(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    named: Groups,
    movers: Collection[str],
    work: Sequence[str],
) -> tuple[PipelinePlan, list[str]]:
    """
    Return the plan of a reset that moves nothing because its work was done, and the groups that were not
    committed since.

    :param movers: the identities of the tasks that reset and restore.
    :param work: the tasks that have done it, for the receipt.
    """
    sources = None if checkpoint is None else checkpoint.read().kafka_offsets
    targets = {
        group: {tp: at for tp, at in group_positions(client, group, scope).items() if at is not None}
        for group, scope in named.scopes(sources).items()
    }
    unfinished = [
        group
        for group, offsets in targets.items()
        if not committed_since(last_commits(client, group, offsets), movers)
    ]
    # Nothing is moved, so that a position out of range is left alone and refuses nothing.
    plans = plan_commits(client, GroupOffsets(targets), source={"kept": list(work)}, on_out_of_range="skip")
    return PipelinePlan(plans), unfinished


def restored_before(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, value: object, by: CommitMetadata
) -> PipelinePlan | None:
    """
    Return what an earlier try of a restore has put back, ``None`` if none has come to its end.

    :param by: the restore; its token is that of its tries.
    """
    kept = read_checkpoint_receipt(value)
    if kept is None or checkpoint is None:
        return None
    archives = read_archives(checkpoint)
    moved = archive_of(archives, kept)
    undo = None if moved is None else undo_of(archives, moved)
    # An empty token is of no try: two moves without one are not the same move.
    if moved is None or undo is None or not undo.by.token or undo.by.token != by.token:
        return None
    before, after = kept_groups(checkpoint, undo)
    source = {"restore": "receipt"}
    plans = plan_commits(client, GroupOffsets(after), source=source, on_out_of_range="skip")
    done = CheckpointPlan(
        kind="undo",
        location=checkpoint.location,
        query_id=undo.query_id,
        batch_id=undo.batch_id,
        before=undo.before,
        after=undo.after,
        discarded=discarded_by(undo),
        archive=undo.name,
        undoes=moved.name,
        log_ids=undo.log_ids,
    )
    return PipelinePlan.make(plans, done).with_before(before)
