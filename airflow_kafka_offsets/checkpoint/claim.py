"""
Claims a checkpoint for a move: of two moves that begin at the same time, at most one continues.

Storages offer no locks, and few can create a file only if it does not exist. So each move first writes a file
with a unique name into its archive's directory, then checks for other claims, and checks again after it has
written its manifest. Of two moves, the one that checks later sees the other. If a process dies before it
writes its manifest, its claim does not block later moves: the next move has a higher number.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from airflow_kafka_offsets.checkpoint.archive import read_archived_move
from airflow_kafka_offsets.checkpoint.archive_names import CLAIM, archive_names
from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY, archive_number
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointMovedError, StorageError


class Claim:
    """The claim of a move on its checkpoint, by the name of its archive; other moves see it at once."""

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
