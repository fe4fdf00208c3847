"""Finds, refuses or resumes checkpoint moves that were begun and not finished."""

from __future__ import annotations

from dataclasses import replace

from airflow_kafka_offsets.checkpoint.archive import file_digest, newest_archived_move, read_archived_moves
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove, restore_of_move
from airflow_kafka_offsets.checkpoint.guards import CheckpointBatches, read_checkpoint_batches
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import MoveUnfinishedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata


def unfinished_move(checkpoint: SparkCheckpoint) -> ArchivedMove | None:
    """
    Return the move that was begun and not finished, ``None`` if every move is finished.

    If the query has run since the move, the query's position counts and the move is over.

    :raises CheckpointError: if the checkpoint cannot be read.
    """
    return still_unfinished(checkpoint, newest_archived_move(checkpoint))


def still_unfinished(
    checkpoint: SparkCheckpoint, newest: ArchivedMove | None, batches: CheckpointBatches | None = None
) -> ArchivedMove | None:
    """
    Return the newest move if it was begun and not finished, see :func:`unfinished_move`.

    A move of another query, in whose place this one has begun, is over: nothing of it can be finished.
    """
    if newest is None or newest.is_over or newest.query_id != checkpoint.query_id():
        return None
    return None if has_run_since(checkpoint, newest, batches) else newest


def has_run_since(
    checkpoint: SparkCheckpoint, archived: ArchivedMove, batches: CheckpointBatches | None = None
) -> bool:
    """Return whether the query has planned or finished a batch since a move."""
    batches = batches or read_checkpoint_batches(checkpoint)
    if archived.has_newer_batches(batches.planned, batches.committed):
        return True
    # In an interrupted move each file still has one of the two known contents.
    return any(file_digest(checkpoint.read_file(path)) not in known for path, known in archived.files.items())


def has_finished_since(state: CheckpointState, archived: ArchivedMove) -> bool:
    """Return whether the query has finished a batch since a seek; an unfinished batch does not count."""
    return state.batch_id is not None and state.batch_id > archived.newest_committed


def unfinished_refusal(checkpoint: SparkCheckpoint, archived: ArchivedMove) -> MoveUnfinishedError:
    """Return the error for a move that meets an unfinished one."""
    return MoveUnfinishedError(
        f"{checkpoint.location}: move {archived} was begun and not finished: it is running, or was "
        "interrupted. The same task, or the same command, finishes it when it runs again; "
        f"{restore_command(checkpoint, archived.undoes or archived.name)} "
        f"{'finishes it' if archived.undoes else 'takes it back'}",
        retriable=True,
    )


def refuse_taken_back(checkpoint: SparkCheckpoint, metadata: CommitMetadata) -> None:
    """
    Refuse to move again in a retry if a restore has taken back the move of an earlier try.

    :param metadata: metadata of the task; all its tries have the same token.
    :raises PlanRefusedError: the text names the restore.
    """
    archives = read_archived_moves(checkpoint)
    moves = [each for each in archives if each.kind != "restore"]
    tries = [each for each in moves if metadata.is_same_instance(each.made_by)]
    taken_back = restore_of_move(archives, tries[-1]) if tries else None
    if taken_back is not None:
        raise PlanRefusedError(
            f"{checkpoint.location}: move {tries[-1].name} of an earlier try of this task was taken back by "
            f"{taken_back}, so this try does not move again: clear the task, or trigger a new run"
        )


def restore_command(checkpoint: SparkCheckpoint, archive: str, *, pending: bool = False) -> str:
    """Return the command that takes a move back, to be quoted in an error text."""
    discard = " --on-pending-batch discard --sink SINK" if pending else ""
    return (
        f"'airflow-kafka-offsets group restore GROUP --checkpoint {checkpoint.location} --archive "
        f"{archive}{discard} --execute'"
    )


def unfinished_move_of_request(
    checkpoint: SparkCheckpoint,
    request: str,
    batches: CheckpointBatches | None = None,
    undoes: str | None = None,
) -> ArchivedMove | None:
    """
    Return the unfinished move that the same request began, ``None`` if no move is unfinished.

    :param undoes: name of a move that may be unfinished: this request takes it back.
    :raises MoveUnfinishedError: if another request began the unfinished move.
    """
    unfinished = still_unfinished(checkpoint, newest_archived_move(checkpoint), batches)
    if unfinished is None or unfinished.name == undoes:
        return None
    if unfinished.request != request:
        raise unfinished_refusal(checkpoint, unfinished)
    return unfinished


def resume_plan(
    checkpoint: SparkCheckpoint, plan: CheckpointPlan, archived: ArchivedMove | None
) -> CheckpointPlan:
    """Return a plan as the rest of an interrupted move; unchanged if there is no such move."""
    if archived is None or has_run_since(checkpoint, archived):
        return plan
    return replace(
        plan,
        before=archived.before,
        archive=archived.name,
        discarded=discarded_batches(archived),
        resumes=True,
    )


def discarded_batches(archived: ArchivedMove) -> tuple[int, ...]:
    """Return the unfinished batches that a move has removed."""
    removed = [path for path, (_, after) in archived.files.items() if after is None]
    batches = sorted(int(path.removeprefix("offsets/")) for path in removed if path.startswith("offsets/"))
    return tuple(batch for batch in batches if batch > archived.batch_id)
