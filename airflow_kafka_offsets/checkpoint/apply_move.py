"""
Applies the plan of a checkpoint move: claims the checkpoint, archives the files, changes them, reads back.

Each step removes Hadoop's checksum file (``.7.crc``) first: it does not match the changed file.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime

from airflow_kafka_offsets.checkpoint.archive import (
    mark_done,
    mark_undone,
    read_archived_move,
    read_mark,
    write_archive,
)
from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY, DONE, MANIFEST, archive_number
from airflow_kafka_offsets.checkpoint.archived_moves import CLAIM, ArchivedMoves, archive_names
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import FinishedState
from airflow_kafka_offsets.errors import (
    BrokerError,
    CheckpointError,
    CheckpointMovedError,
    KafkaOffsetsError,
    PlanRefusedError,
    StorageError,
    StorageUnavailableError,
)
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, Step
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.storage import modified_at

log = logging.getLogger(__name__)


def apply_checkpoint_plan(
    checkpoint: SparkCheckpoint,
    plan: CheckpointPlan,
    *,
    quiet_period: float = QUIET_PERIOD,
    made_by: CommitMetadata = NO_METADATA,
    attachments: Mapping[str, str] | None = None,
    last_check: Callable[[], None] | None = None,
    commit: Callable[[], None] | None = None,
) -> None:
    """
    Apply a plan: check that nothing has changed, archive the old files, change them, read them back.

    :param quiet_period: seconds to wait for writes of a running query, which refuse the move.
    :param made_by: the run and task that makes the move; its token lets a retry find the first try's archive.
    :param attachments: name -> text of additional files for the archive.
    :param last_check: called after other moves can see this one and before the first write; an exception from
        it ends the move.
    :param commit: commits the groups, after the checkpoint was moved. The move is finished when it returns.
    :raises PlanRefusedError: if the plan is refused, or the query is running; no file was changed.
    :raises CheckpointError: if the files that are read back differ from the plan.
    """
    PipelinePlan((), plan).check()
    remedy = f"running it again finishes the rest, restoring archive {plan.archive} takes the move back"
    if plan.steps:
        wait_until_quiet(checkpoint, quiet_period)
        _begin(checkpoint, plan, made_by, attachments or {}, last_check)
        with _explained(f"the checkpoint may be moved in part: {remedy}"):
            for step in (*(Step(path, None) for path in plan.derived), *plan.steps):
                _apply_step(checkpoint, plan, step)
            # Before the commits: a group must not be where the checkpoint is not.
            verify_checkpoint(checkpoint, plan)
        log.info("Moved and read back: checkpoint %s, archive %s", checkpoint.location, plan.archive)
    else:
        # A plan without changes must not hide that another move was begun and not finished.
        ArchivedMoves(checkpoint).refuse_unfinished(plan.archive, plan.undoes)
        if last_check is not None:
            last_check()
    if commit is not None:
        try:
            commit()
        except BrokerError as error:
            if plan.steps:
                error.append(f"the checkpoint {checkpoint.location} was moved before: {remedy}")
            raise
    _finish(checkpoint, plan)


def _finish(checkpoint: SparkCheckpoint, plan: CheckpointPlan) -> None:
    """Mark a move as done, and the move that it takes back as undone."""
    if plan.archive is not None:
        _refuse_taken_back(checkpoint, plan.archive)
    # A restore that names no archive would take back the move before, if the mark was written nevertheless.
    again = "running it" if plan.undoes is None else f"restoring archive {plan.undoes}"
    with _explained(f"all was moved, but the archive may not be marked as done: {again} again marks it"):
        # In this order: if the process dies in between, running the restore again sets the second mark.
        if plan.archive is not None:
            mark_done(checkpoint, plan.archive)
        if plan.undoes is not None:
            mark_undone(checkpoint, plan.undoes, plan.archive or "nothing to change")
        if plan.archive is not None:
            # The process may have been frozen since the first look.
            _refuse_taken_back(checkpoint, plan.archive)


def _refuse_taken_back(checkpoint: SparkCheckpoint, archive: str) -> None:
    """Raise an error if a move was taken back, or given up by another try, while it was running."""
    kept = read_archived_move(checkpoint, archive)
    if kept is None or kept.undone:
        raise CheckpointMovedError(
            f"{checkpoint.location}: move {kept or archive} was taken back while it was running; "
            "check where the checkpoint and its groups are now, then move them again"
        )


def verify_checkpoint(checkpoint: SparkCheckpoint, plan: CheckpointPlan) -> None:
    """Refuse a checkpoint whose files differ from the applied plan."""
    kept = "" if plan.archive is None else f"; the overwritten files are in archive {plan.archive}"
    state = checkpoint.read()
    if state.kafka_offsets != plan.after:
        raise CheckpointError(
            f"{checkpoint.location}: the offsets read back after the move are not those that were written "
            f"(batch {state.batch_id}): the query is running, or another process moves the checkpoint; stop "
            f"it{kept}"
        )
    begun = state.pending_batch_id
    known = begun is None or begun in plan.batches[0] or f"offsets/{begun}" in plan.file_contents
    if plan.steps and not known:
        raise CheckpointError(
            f"{checkpoint.location}: batch {begun} was begun during the move, perhaps at the old offsets: "
            f"the query is running; stop it{kept}"
        )
    # A batch that should be removed and still exists does not change the offsets of the batch before it.
    for step in plan.steps:
        if checkpoint.read_file(step.path) != step.data:
            raise StorageUnavailableError(
                f"{checkpoint.name(step.path)}: read back after the move, the file "
                f"{'still exists' if step.data is None else 'differs from the written one'}: the storage did "
                f"not apply the change, or the query is running{kept}"
            )


def _begin(
    checkpoint: SparkCheckpoint,
    plan: CheckpointPlan,
    made_by: CommitMetadata,
    attachments: Mapping[str, str],
    last_check: Callable[[], None] | None,
) -> None:
    """Archive the files to overwrite, unless an interrupted try did, and let no other move begin."""
    if plan.resumes:
        _refuse_changed(checkpoint, plan)
        if last_check is not None:
            last_check()
        return
    name, undoes = str(plan.archive), plan.undoes
    with _explained("the checkpoint was not changed"):
        claim = Claim(checkpoint, name)
    try:
        claim.check(undoes=undoes)
        _refuse_changed(checkpoint, plan)
    except (Exception, KeyboardInterrupt):
        with suppress(Exception):
            claim.withdraw()
        raise
    with _explained("the checkpoint was not changed"):
        write_archive(checkpoint, plan, made_by, attachments, claim.nonce)
    try:
        claim.check(undoes=undoes)
        # A slow storage takes long to archive the files, and the query may run again.
        _refuse_changed(checkpoint, plan)
        if last_check is not None:
            last_check()
    except (Exception, KeyboardInterrupt):
        # Without a manifest the move never began. An unfinished move that it was to take back is then the
        # newest one again; a mark would hide it. The claim stays, so that no other move gets the number.
        with suppress(Exception):
            checkpoint.remove_file(f"{DIRECTORY}/{name}/{MANIFEST}")
        raise


@contextmanager
def _explained(state: str) -> Iterator[None]:
    """Append to an error of the storage the state that it leaves."""
    # If the query runs, the same move would not finish the rest but meet the batch that the query has begun.
    try:
        yield
    except StorageError as error:
        raise error.append(state) from error.__cause__


def _refuse_changed(checkpoint: SparkCheckpoint, plan: CheckpointPlan) -> None:
    """Refuse a checkpoint that has changed since the plan was made."""
    planned, committed = checkpoint.listed()
    if (frozenset(planned), frozenset(committed)) != plan.batches or any(
        checkpoint.read_file(path) != data for path, data in plan.file_contents.items()
    ):
        raise PlanRefusedError(
            f"{checkpoint.location}: has changed since the plan was made: the query is running, or another "
            "process moves the checkpoint; stop it first"
        )


def check_not_over(checkpoint: SparkCheckpoint, plan: CheckpointPlan) -> None:
    """
    Raise a CheckpointMovedError if another process has finished the move since, or has taken it back.

    Airflow starts the next try of a task whose worker is frozen. When the worker continues, the query may
    have run from the end of the finished move.
    """
    if plan.archive is not None and not plan.repeats and (mark := read_mark(checkpoint, plan.archive)):
        how = "finished" if mark == DONE else "taken back"
        raise CheckpointMovedError(
            f"{checkpoint.location}: move {plan.archive} was {how} by another process while this try was "
            "running, so this try writes no more"
        )


def _apply_step(checkpoint: SparkCheckpoint, plan: CheckpointPlan, step: Step) -> None:
    check_not_over(checkpoint, plan)
    directory, _, name = step.path.rpartition("/")
    # Hadoop's checksum file, and Spark 4.1's checksum file of state.
    checkpoint.remove_file(f"{directory}/.{name}.crc")
    checkpoint.remove_file(f"{step.path}.crc")
    if step.data is None:
        checkpoint.remove_file(step.path)
    else:
        checkpoint.write_file(step.path, step.data)


def wait_until_quiet(checkpoint: SparkCheckpoint, quiet_period: float) -> None:
    """Wait until nothing was written to a checkpoint for these seconds; refuse to move it if something is."""
    state = checkpoint.read_finished()
    paths = (f"offsets/{max(state.planned)}", f"commits/{max(state.committed)}")
    written = [modified_at(checkpoint.fs, f"{checkpoint.root}/{path}") for path in paths]
    known = [moment for moment in written if moment is not None]
    now = _storage_time(checkpoint) if quiet_period and len(known) == len(paths) else None
    if now is not None:
        quiet_period += _real_time_batch(checkpoint, state, *known)
    # If one of the files has no time, its age is unknown: wait for the whole quiet period.
    age = 0.0 if now is None else (now - max(known)).total_seconds()
    wait = min(quiet_period, quiet_period - age)
    if wait > 0:
        why = parameter_text("quiet_period")
        log.info("Waiting %.1f s to see that no query writes to %s (%s)", wait, checkpoint.location, why)
        time.sleep(wait)
        then = checkpoint.read_finished()
        again = [modified_at(checkpoint.fs, f"{checkpoint.root}/{path}") for path in paths]
        if (then.planned, then.committed, again) != (state.planned, state.committed, written):
            raise PlanRefusedError(
                f"{checkpoint.location}: was written to within the last {quiet_period:g} s: the query is "
                "running; stop it first"
            )


def _real_time_batch(
    checkpoint: SparkCheckpoint, state: FinishedState, planned: datetime, committed: datetime
) -> float:
    """
    Return how many seconds a batch of real-time mode (Spark 4.2) takes; 0 in every other mode.

    Such a batch begins when the batch before it has ended, and Spark writes both of its files at its end.
    """
    before = state.batch_id - 1
    ended = checkpoint.ended_at(before)
    if state.pending or ended is None or before not in state.planned:
        return 0.0
    began, earlier = state.entry.batch_timestamp_ms, checkpoint.entry(before).batch_timestamp_ms
    if began is None or earlier is None:
        return 0.0
    took, gap = planned.timestamp() - began / 1_000, abs(began / 1_000 - ended.timestamp())
    # After a move, a copy or a restore of the files, their times are not the end of the batch.
    return took if planned <= committed and 2 * gap < took <= 2 * (began - earlier) / 1_000 else 0.0


def _storage_time(checkpoint: SparkCheckpoint) -> datetime | None:
    """Return the time by the clock of a checkpoint's storage; ``None`` if it is unknown."""
    # Beside the archives: a directory made for it could be one in which another user may not write.
    path = f"{DIRECTORY}.clock"
    with suppress(KafkaOffsetsError):  # perhaps the user may only read
        checkpoint.write_file(path, b"")
        try:
            return modified_at(checkpoint.fs, f"{checkpoint.root}/{path}")
        finally:
            checkpoint.remove_file(path)
    return None


class Claim:
    """
    Claims a checkpoint for a move: of two moves that begin at the same time, at most one continues.

    Storages offer no locks, and few can create a file only if it does not exist. So each move first writes a
    file with a unique name into its archive's directory, then checks for other claims, and checks again after
    it has written its manifest. Of two moves, the one that checks later sees the other. If a process dies
    before it writes its manifest, its claim does not block later moves: the next move has a higher number.
    """

    def __init__(self, checkpoint: SparkCheckpoint, archive: str) -> None:
        self._checkpoint = checkpoint
        self._archive = archive
        self.nonce = uuid.uuid4().hex
        # Write before any check: of two moves, the one that checks later then sees the other.
        checkpoint.write_file(self._file, b"")

    def check(self, *, undoes: str | None = None) -> None:
        """
        Check that no other move has begun since this one was planned.

        :param undoes: name of an archive whose move may be unfinished: this move restores it.
        :raises CheckpointMovedError: if a move with the same or a higher number has begun.
        :raises MoveUnfinishedError: if an earlier move is not finished.
        """
        # List again at each check: the second check must find moves that began after the first.
        names = archive_names(self._checkpoint)
        mine = archive_number(self._archive)
        if any(self._has_rival(name) for name in names if archive_number(name) >= mine):
            raise CheckpointMovedError(
                f"{self._checkpoint.location}: another move of this checkpoint began at the same time; "
                "nothing was changed; running it again plans from the offsets that the other move has "
                "written"
            )
        earlier = [name for name in names if archive_number(name) < mine]
        ArchivedMoves(self._checkpoint, earlier).refuse_unfinished(undoes)

    def withdraw(self) -> None:
        """Release the checkpoint; if the storage fails, the claim stays but does not block later moves."""
        with suppress(StorageError):
            self._checkpoint.remove_file(self._file)

    @property
    def _file(self) -> str:
        return f"{DIRECTORY}/{self._archive}/{self.nonce}{CLAIM}"

    def _has_rival(self, archive: str) -> bool:
        # Read the manifest instead of searching a listing, which may be late on some storages.
        begun = read_archived_move(self._checkpoint, archive)
        if begun is not None and begun.nonce != self.nonce:
            return True
        names = self._checkpoint.list_names(f"{DIRECTORY}/{archive}")
        return any(name.endswith(CLAIM) and name != f"{self.nonce}{CLAIM}" for name in names)
