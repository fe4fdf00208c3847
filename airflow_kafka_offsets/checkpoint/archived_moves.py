"""
The moves of a checkpoint as one value, which answers every question about them, and their archives' names.

The archive of a checkpoint outlives its query: a new query at the same location has the moves of the replaced
one in its archive. They keep their names and numbers, and say nothing about the new query. A directory with
neither a manifest nor a claim belongs to no move and is ignored, whatever its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import count, takewhile

from airflow_kafka_offsets.checkpoint.archive import (
    file_digest,
    moves_of_batch,
    read_archived_move,
    read_group_offsets,
)
from airflow_kafka_offsets.checkpoint.archived_move import (
    ARCHIVE_NAME,
    BATCHES_COMPARED,
    DIRECTORY,
    KINDS,
    MANIFEST,
    ArchivedMove,
    archive_number,
)
from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry, parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, MoveUnfinishedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Offsets, Positions
from airflow_kafka_offsets.storage import may_list_late

CLAIM = ".claim"
"""Suffix of the file name of a claim, see :class:`~airflow_kafka_offsets.checkpoint.apply_move.Claim`."""


class ArchivedMoves:
    """
    The moves in a checkpoint's archive, oldest first; directories without a manifest are skipped.

    An archive is read when a question first needs it, and only once, so that all answers agree. To see what
    has changed since, for example right before a write, make a new value.

    :param names: names of the archives, oldest first; by default all that there are.
    :raises CheckpointFormatError: by each question, if a manifest is invalid.
    """

    def __init__(self, checkpoint: SparkCheckpoint, names: Iterable[str] | None = None) -> None:
        self.checkpoint = checkpoint
        self._names = names
        self._read: list[ArchivedMove] = []

    def __iter__(self) -> Iterator[ArchivedMove]:
        return iter([*reversed(self)][::-1])

    def __reversed__(self) -> Iterator[ArchivedMove]:
        for position in count():
            while position == len(self._read):
                if not self._unread:
                    return
                archive = read_archived_move(self.checkpoint, self._unread[-1])
                self._unread.pop()
                if archive is not None:
                    self._read.append(archive)
            yield self._read[position]

    @cached_property
    def _unread(self) -> list[str]:
        return list(archive_names(self.checkpoint) if self._names is None else self._names)

    @cached_property
    def query_id(self) -> str:
        """The id of the query that is at the location now."""
        return self.checkpoint.query_id()

    @property
    def number(self) -> int:
        """The number of the newest move, whichever query it moved; 0 without a move."""
        newest = next(reversed(self), None)
        return 0 if newest is None else newest.number

    @property
    def of_query(self) -> Iterator[ArchivedMove]:
        """The moves of the query that is at the location now, newest first."""
        return (each for each in reversed(self) if each.query_id == self.query_id)

    @property
    def newest(self) -> ArchivedMove | None:
        """The query's newest move that has begun."""
        return next(self.of_query, None)

    def in_effect(self, after: int = 0) -> Iterator[ArchivedMove]:
        """
        Return the query's moves in effect, newest first: none that was undone, nor the one that undid it.

        :param after: number of a move: only later moves, with restores of the moves before it.
        """
        for each in takewhile(lambda each: each.number > after, self.of_query):
            if not each.undone and (each.undoes is None or archive_number(each.undoes) < after):
                yield each

    def newest_with_cluster(self, topics: Collection[str] = ()) -> ArchivedMove | None:
        """
        Return the query's newest move that names its cluster; no failover that was taken back or abandoned.

        :param topics: the move has moved at least one of these topics; without topics, every move counts.
        """
        found = (each for each in self.of_query if each.has_failed_over or not each.is_failover)
        return next((each for each in found if each.log_ids.cluster and each.concerns(topics)), None)

    def rewrites_of_batch(self, batch_id: int | None) -> list[ArchivedMove]:
        """Return the moves that have rewritten the file of the newest batch since Spark wrote it."""
        if batch_id is None:
            return []
        path = f"offsets/{batch_id}"
        # Spark has planned the batch after any older move.
        moves = [
            *takewhile(lambda each: path in each.files or each.newest_planned >= batch_id, self.of_query)
        ]
        # A move may have written the same offsets, which are those of other records.
        same = [each for each in moves if each.changes_logs and each.batch_id == batch_id]
        data = self.checkpoint.read_file(path) if moves else None
        return same + ([] if data is None else moves_of_batch(moves, batch_id, data))

    def last_written(self, topics: Collection[str]) -> int:
        """Return the newest batch that a move has written, -1 if none has."""
        written = (each.written for each in self.of_query if each.concerns(topics))
        return next((max(batches) for batches in written if batches), -1)

    def batches_after(self, last: int) -> Iterator[OffsetLogEntry]:
        """Return Spark's plans of the last batches after one, oldest first."""
        for number in sorted(self.checkpoint.batches("offsets"))[-BATCHES_COMPARED:]:
            path = f"offsets/{number}"
            # A running query removes old batches.
            if number > last and (text := self.checkpoint.read_text(path)) is not None:
                yield parse_offset_log(text, self.checkpoint.name(path))

    def of_receipt(self, receipt: CheckpointPlan) -> ArchivedMove | None:
        """Return the archive of a receipt's move; ``None`` if the move changed no file."""
        # A refused move has a receipt but no archive, and a later move may have taken its name.
        of_receipt = (receipt.archive, receipt.before, receipt.after)
        return next((each for each in self if (each.name, each.before, each.after) == of_receipt), None)

    def group_offsets(self, move: ArchivedMove) -> tuple[dict[str, Positions], dict[str, Offsets]]:
        """Return the positions of each group before a move, and its target offsets."""
        return read_group_offsets(self.checkpoint, move)

    def restore_of(self, move: ArchivedMove) -> ArchivedMove | None:
        """Return the newest finished move that has undone another one; ``None`` if no move has."""
        return next((each for each in reversed(self) if each.undoes == move.name and each.done), None)

    def find(self, name: str | None) -> ArchivedMove:
        """
        Return a move by its archive's name, or the newest move that was not taken back.

        :raises CheckpointError: if there is no such archive; PlanRefusedError if it is of another query.
        """
        location = self.checkpoint.location
        for move in reversed(self):
            if move.name == name or (name is None and not move.undone and move.kind != "restore"):
                if move.query_id != self.query_id:
                    raise PlanRefusedError(
                        f"{location}: archive {move.name} belongs to query {move.query_id}, but the "
                        f"checkpoint belongs to query {self.query_id}: give the archive's own checkpoint"
                    )
                return move
        there = ", ".join(f"{each.name} ({'undone' if each.undone else each.created})" for each in self)
        found, instead = "move to take back", ""
        if name is not None:
            found, instead = f"archive {name}", ", or give the offsets from a receipt or a CSV file"
        if there:
            raise CheckpointError(
                f"{location}: found no {found}; there are: {there}: name one of them{instead}"
            )
        raise CheckpointError(
            f"{location}: there is no {found}: correct the location{instead or ', if one was made'}"
        )

    def unfinished(self) -> ArchivedMove | None:
        """
        Return the move that was begun and not finished, ``None`` if every move is finished.

        If the query has run since, its position counts and the move is over. So is a move of another query,
        in whose place this one has begun: nothing of it can be finished.
        """
        newest = self.newest
        if newest is None or newest.is_over or self.has_run_since(newest):
            return None
        return newest

    def has_run_since(self, move: ArchivedMove) -> bool:
        """Return whether the query has planned or finished a batch since a move."""
        state = self.checkpoint.read_finished()
        if move.has_newer_batches(state.planned, state.committed):
            return True
        # In an interrupted move each file still has one of the two known contents.
        read = self.checkpoint.read_file
        return any(file_digest(read(path)) not in known for path, known in move.files.items())

    def unfinished_error(self, unfinished: ArchivedMove) -> MoveUnfinishedError:
        """Return the error for a move that meets an unfinished one."""
        finishes = "finishes it" if unfinished.undoes else "takes it back"
        return MoveUnfinishedError(
            f"{self.checkpoint.location}: move {unfinished} was begun and not finished: it is running, or "
            "was interrupted. The same task, or the same command, finishes it when it runs again; "
            f"{self.restore_command(unfinished.undoes or unfinished.name)} {finishes}",
            retriable=True,
        )

    def restore_command(self, name: str, *, pending: bool = False) -> str:
        """Return the command that takes a move back, to be quoted in an error text."""
        discard = " --on-pending-batch discard --sink SINK" if pending else ""
        return (
            f"'airflow-kafka-offsets group restore GROUP --checkpoint {self.checkpoint.location} --archive "
            f"{name}{discard} --execute'"
        )

    def refuse_unfinished(self, *allowed: str | None) -> None:
        """Raise a MoveUnfinishedError while a move is unfinished, unless its archive is among ``allowed``."""
        unfinished = self.unfinished()
        if unfinished is not None and unfinished.name not in allowed:
            raise self.unfinished_error(unfinished)

    def begun_by(self, request: str, undoes: str | None = None) -> ArchivedMove | None:
        """
        Return the unfinished move that the same request began, ``None`` if no move is unfinished.

        :param undoes: name of a move that may be unfinished: this request takes it back.
        :raises MoveUnfinishedError: if another request began the unfinished move.
        """
        unfinished = self.unfinished()
        if unfinished is None or unfinished.name == undoes:
            return None
        if unfinished.request != request:
            raise self.unfinished_error(unfinished)
        return unfinished

    def refuse_taken_back(self, metadata: CommitMetadata) -> None:
        """Refuse to move again in a retry if a restore has taken back the move of an earlier try."""
        moves = (each for each in reversed(self) if each.kind != "restore")
        last = next((each for each in moves if metadata.is_same_instance(each.made_by)), None)
        taken_back = None if last is None else self.restore_of(last)
        if last is not None and taken_back is not None:
            raise PlanRefusedError(
                f"{self.checkpoint.location}: move {last.name} of an earlier try of this task was taken back "
                f"by {taken_back}, so this try does not move again: clear the task, or trigger a new run"
            )

    def failover_refusals(self, batch_id: int) -> list[str]:
        """Return why the query cannot go back to a batch: its offsets are of another cluster or topic."""
        leaving = (
            each for each in self.of_query if each.changes_logs and not (each.undone or each.abandoned)
        )
        failover = next((each for each in leaving if each.batch_id > batch_id), None)
        if failover is None:
            return []
        return [
            f"{self.checkpoint.location}: move {failover} has moved the query to another cluster or "
            f"topic after batch {failover.batch_id - 1}, where the offsets of batch {batch_id} are other "
            f"records: give batch {failover.batch_id} or a later one, or a time"
        ]


def archive_names(checkpoint: SparkCheckpoint, *, exact: bool = True) -> list[str]:
    """Return the names of a checkpoint's archives, oldest first; ``exact`` corrects a late listing."""
    names = set(filter(ARCHIVE_NAME.fullmatch, checkpoint.list_names(DIRECTORY)))
    if exact and may_list_late(checkpoint.fs):
        listed = set(map(archive_number, names))
        walks = [(_last_move(checkpoint, names) + 1, 1), *((number - 1, -1) for number in listed)]
        for first, step in walks:
            # Archives are missing because they are new, or because a user has deleted the old ones: those
            # beyond a number that does not exist are not looked up.
            for number in count(first, step):
                if number in listed or not (unlisted := _unlisted(checkpoint, number)):
                    break
                names |= unlisted
    return sorted(names, key=archive_number)


def _unlisted(checkpoint: SparkCheckpoint, number: int) -> set[str]:
    """Return the archives with a number that have a manifest, listed or not."""
    names = (f"{number:04d}-{kind}" for kind in KINDS if number > 0)
    return {name for name in names if checkpoint.read_file(f"{DIRECTORY}/{name}/{MANIFEST}") is not None}


def next_archive_name(checkpoint: SparkCheckpoint, kind: str) -> str:
    """
    Return the name of the next archive: its number follows all moves, including moves with a claim only.

    :raises CheckpointError: if there is no number left.
    """
    names = archive_names(checkpoint)
    taken, last = set(map(archive_number, names)), _last_move(checkpoint, names)
    number = next(number for number in count(last + 1) if number not in taken)
    if not ARCHIVE_NAME.fullmatch(name := f"{number:04d}-{kind}"):
        raise CheckpointError(
            f"{checkpoint.name(DIRECTORY)}: found {names[-1]}, and archives are numbered from 0001 in the "
            "order of their moves: check the directory, and move it away if no move created it"
        )
    return name


def _last_move(checkpoint: SparkCheckpoint, names: Iterable[str]) -> int:
    """Return the number of the last directory with a manifest or a claim, 0 without any."""
    for name in sorted(names, key=archive_number, reverse=True):
        path = f"{DIRECTORY}/{name}"
        if checkpoint.read_file(f"{path}/{MANIFEST}") is not None or any(
            file.endswith(CLAIM) for file in checkpoint.list_names(path)
        ):
            return archive_number(name)
    return 0
