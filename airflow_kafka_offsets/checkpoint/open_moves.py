"""Moves of a checkpoint that were begun and not finished: found, refused, or taken up again."""

from __future__ import annotations

from dataclasses import replace

from airflow_kafka_offsets.checkpoint.archive import Archive, file_digest, newest_archive
from airflow_kafka_offsets.checkpoint.guards import Survey, take_survey
from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
from airflow_kafka_offsets.errors import MoveUnfinishedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan


def unfinished_move(checkpoint: SparkCheckpoint) -> Archive | None:
    """
    Return the move that was begun and not finished, ``None`` if there is none.

    If the query has run since, its position is what counts, and the move is over.

    :raises CheckpointError: if the checkpoint cannot be read.
    """
    return if_unfinished(checkpoint, newest_archive(checkpoint))


def if_unfinished(checkpoint: SparkCheckpoint, newest: Archive | None) -> Archive | None:
    """Return the newest move if it was begun and not finished, see :func:`unfinished_move`."""
    return None if newest is None or newest.over or has_run_since(checkpoint, newest) else newest


def has_run_since(checkpoint: SparkCheckpoint, kept: Archive, survey: Survey | None = None) -> bool:
    """Return whether the query has planned or finished a batch since a move."""
    survey = survey or take_survey(checkpoint)
    # What an undo puts back is newer than what it has found.
    planned = (batch for batch in survey.planned if f"offsets/{batch}" not in kept.files)
    committed = (batch for batch in survey.committed if f"commits/{batch}" not in kept.files)
    if max(planned, default=-1) > kept.newest_planned or max(committed, default=-1) > kept.newest_committed:
        return True
    # Half a move, too, is one or the other, file by file.
    return any(file_digest(checkpoint.read_file(path)) not in known for path, known in kept.files.items())


def has_finished_since(state: CheckpointState, kept: Archive) -> bool:
    """Return whether the query has finished a batch since a seek; a batch that was only begun is none."""
    return state.batch_id is not None and state.batch_id > kept.newest_committed


def unfinished_refusal(checkpoint: SparkCheckpoint, kept: Archive) -> MoveUnfinishedError:
    """Return the error for whoever meets a move that was begun and not finished."""
    return MoveUnfinishedError(
        f"{checkpoint.location}: move {kept} was begun and not finished: it is under way, or has stopped "
        "half-way. The same task, or the same command, finishes it when it runs again; "
        f"'airflow-kafka-offsets group restore GROUP --checkpoint {checkpoint.location} --archive "
        f"{kept.undoes or kept.name}' {'finishes it' if kept.undoes else 'takes it back'}",
        retriable=True,
    )


def take_back(checkpoint: SparkCheckpoint, kept: Archive, *, pending: bool = False) -> str:
    """Return the command that takes a move back, as an error's text quotes it."""
    discard = " --on-pending-batch discard --sink SINK" if pending else ""
    return (
        f"'airflow-kafka-offsets group restore GROUP --checkpoint {checkpoint.location} --archive {kept.name}"
        f"{discard} --execute'"
    )


def same_request(
    checkpoint: SparkCheckpoint, survey: Survey, request: str, undoes: str | None = None
) -> Archive | None:
    """
    Return the move that this request has begun before and not finished, ``None`` if nothing is unfinished.

    :param undoes: a move that may be unfinished: it is taken back.
    :raises MoveUnfinishedError: if another request has begun it.
    """
    kept = newest_archive(checkpoint)
    if kept is None or kept.over or kept.name == undoes or has_run_since(checkpoint, kept, survey):
        return None
    if kept.request != request:
        raise unfinished_refusal(checkpoint, kept)
    return kept


def resume(
    checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan, kept: Archive | None
) -> CheckpointPlan:
    """Return a plan, made on what an interrupted move has left, as the rest of that move, if there is one."""
    if kept is None or has_run_since(checkpoint, kept):
        return checkpoint_plan
    return replace(
        checkpoint_plan, before=kept.before, archive=kept.name, discarded=discarded_by(kept), resumes=True
    )


def discarded_by(kept: Archive) -> tuple[int, ...]:
    """Return the unfinished batches that a move has removed."""
    removed = [path for path, (_, after) in kept.files.items() if after is None]
    batches = sorted(int(path.removeprefix("offsets/")) for path in removed if path.startswith("offsets/"))
    return tuple(batch for batch in batches if batch > kept.batch_id)
