"""
The claim of a move on its checkpoint, so that of two moves that begin at the same time at most one goes on.

No storage offers a lock, and few write a file only if it is not there. So each move first writes a file of a
name of its own into its archive's directory, then looks for others, and looks again once its manifest is
written. Of two moves the one that looks later sees the other. A process that dies before its manifest leaves
a claim that is in nobody's way: the next move has a higher number.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import read_archived_move
from airflow_kafka_offsets.checkpoint.archive_names import CLAIM, DIRECTORY, archive_names, archive_number
from airflow_kafka_offsets.checkpoint.open_moves import has_run_since, unfinished_refusal
from airflow_kafka_offsets.errors import CheckpointMovedError, StorageError
from airflow_kafka_offsets.storage import list_names

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


class Claim:
    """
    A move's claim on its checkpoint, which others see from now on.

    :param archive: name of the move's archive, the next one when the move was planned.
    """

    def __init__(self, checkpoint: SparkCheckpoint, archive: str) -> None:
        self._checkpoint = checkpoint
        self._archive = archive
        self.nonce = uuid.uuid4().hex
        # Before any look: of two moves the one that looks later then sees the other.
        checkpoint.write_file(self._file, b"")

    def check(self, *, undoes: str | None = None) -> None:
        """
        Check that no other move has begun since this one was planned.

        :param undoes: name of an archive whose move may be unfinished.
        :raises CheckpointMovedError: if one with the same or a later number has.
        :raises MoveUnfinishedError: if one before is not finished.
        """
        # Listed anew each time: the second look is for what was not there at the first.
        names = archive_names(self._checkpoint)
        mine = archive_number(self._archive)
        if any(self._has_rival(name) for name in names if archive_number(name) >= mine):
            raise CheckpointMovedError(
                f"{self._checkpoint.location}: another move of it was begun at the same time; nothing was "
                "changed; running it again plans from where that one has left it"
            )
        before = (
            read_archived_move(self._checkpoint, name)
            for name in reversed(names)
            if archive_number(name) < mine
        )
        newest = next((archive for archive in before if archive is not None), None)
        if newest is None or newest.is_over or newest.name == undoes:
            return
        if not has_run_since(self._checkpoint, newest):
            raise unfinished_refusal(self._checkpoint, newest)

    def withdraw(self) -> None:
        """Give the checkpoint up to others; a claim that stays on a failing storage is in nobody's way."""
        with suppress(StorageError):
            self._checkpoint.remove_file(self._file)

    @property
    def _file(self) -> str:
        return f"{DIRECTORY}/{self._archive}/{self.nonce}{CLAIM}"

    def _has_rival(self, archive: str) -> bool:
        # A manifest is read, and not looked for in a listing, which may be late on some storages.
        begun = read_archived_move(self._checkpoint, archive)
        if begun is not None and begun.nonce != self.nonce:
            return True
        names = list_names(self._checkpoint.fs, f"{self._checkpoint.root}/{DIRECTORY}/{archive}") or []
        return any(name.endswith(CLAIM) and name != f"{self.nonce}{CLAIM}" for name in names)
