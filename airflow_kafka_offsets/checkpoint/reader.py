"""Reads a Spark checkpoint: the newest committed batch, the pending batch, and their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_kafka_offsets.checkpoint.log import (
    OffsetLogEntry,
    check_commit_log,
    parse_offset_log,
    parse_query_id,
)
from airflow_kafka_offsets.checkpoint.state import INDEX, CheckpointState, FinishedState
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from airflow_kafka_offsets.model.location import hadoop_path
from airflow_kafka_offsets.model.text import is_plain, join_first, shorten
from airflow_kafka_offsets.storage import (
    decode,
    list_names,
    may_list_late,
    modified_at,
    open_location,
    read_bytes,
    remove_file,
    replace_file,
)

# Spark's batch ids are Java's Long: a longer number is not read as a batch.
_LAST_BATCH = 2**63 - 1
_ATTEMPTS = 5


class _FileGoneError(StorageUnavailableError):
    """A listed file no longer exists: a running query removes old batches."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: was listed but did not exist when it was read, {_ATTEMPTS} times: the query removes "
            "batches faster than they can be read; raise spark.sql.streaming.minBatchesToRetain, or try again"
        )


class _NoCommonBatchError(CheckpointFormatError):
    """No batch is in both directories: read between two listings, or files were removed by hand."""

    def __init__(self, location: str, planned: set[int], committed: set[int]) -> None:
        offsets = f"{min(planned)} to {max(planned)}" if planned else "of no batch"
        super().__init__(
            f"{location}: found commits up to {max(committed)} and offsets {offsets}; expected a "
            "batch that is in both: files were removed by hand, the copy is not complete, or the query "
            "removes batches faster than they can be read (then raise "
            "spark.sql.streaming.minBatchesToRetain, or try again)"
        )


class SparkCheckpoint:
    """
    A Spark Structured Streaming checkpoint on any storage that fsspec has a driver for.

    Reading needs no lock: the query may be running. Each method raises a StorageUnavailableError if the
    storage does not answer; a retry may succeed.

    :param location: the directory's URI exactly as in the Spark job (``checkpointLocation``).
    :param fs: an existing file system; by default fsspec creates one for the URI's scheme.
    :param storage_options: options of fsspec's driver (endpoint, credentials), used without ``fs``.
    :raises UsageError: if the location is empty or contains a password.
    :raises CheckpointError: if the storage's driver is not installed or cannot be set up.
    """

    def __init__(
        self,
        location: str,
        *,
        fs: AbstractFileSystem | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.location = location
        self.fs, path = open_location(location, fs, storage_options)
        self.root = hadoop_path(path)

    def read(self) -> CheckpointState:
        """
        Return the newest state, from two listings and a few small files, whatever the number of batches.

        :raises CheckpointNotFoundError: if there is no checkpoint; describes what the location contains
            instead.
        :raises CheckpointFormatError: if a file has an unknown format; names the file.
        :raises StorageUnavailableError: also if a running query removes files faster than they can be read.
        """
        return self._read()

    # A running query may remove an old batch between listing and read: both are then done again.
    @retry(
        retry=retry_if_exception_type((_FileGoneError, _NoCommonBatchError)),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=0.5),
        reraise=True,
    )
    def _read(self) -> CheckpointState:
        query_id = self.query_id()
        planned, committed = map(frozenset, self.listed())
        last = max(planned, default=-1)
        # Batches that were planned and finished since offsets was listed are left out.
        if max(committed, default=-1) > last and self.has("offsets", max(committed)):
            committed = frozenset(number for number in committed if number <= last)
        batch_id = max(planned & committed, default=None)
        if batch_id is None:
            return CheckpointState(self.location, query_id, None, planned, committed, None)
        entry = parse_offset_log(*self._batch_file("offsets", batch_id))
        # A commit of an unknown version of Spark: its offsets may have another meaning.
        check_commit_log(*self._batch_file("commits", batch_id))
        return FinishedState(self.location, query_id, batch_id, planned, committed, entry)

    def read_finished(self) -> FinishedState:
        """Read the newest state as :meth:`read` does; a CheckpointError if no batch has finished yet."""
        state = self.read()
        if not isinstance(state, FinishedState):
            raise CheckpointError(
                f"{self.location}: no batch has finished, so there is nothing to move: give the query "
                "startingOffsets, which Spark uses until the first batch is planned, or let its first batch "
                "finish"
            )
        return state

    def ended_at(self, batch_id: int) -> datetime | None:
        """Return the time of a batch's file in ``commits``; ``None`` without the file or without its time."""
        return modified_at(self.fs, f"{self.root}/commits/{batch_id}")

    def entry(self, batch_id: int) -> OffsetLogEntry:
        """
        Return Spark's plan of a batch: its file in ``offsets``.

        :raises CheckpointError: if the file does not exist: Spark no longer keeps the batch.
        """
        try:
            return parse_offset_log(*self._batch_file("offsets", batch_id))
        except _FileGoneError:
            raise CheckpointError(
                f"{self.name(f'offsets/{batch_id}')}: does not exist; expected a batch that Spark has "
                "planned and not yet removed: it keeps the last 100 (spark.sql.streaming.minBatchesToRetain)"
            ) from None

    def read_file(self, path: str, *, listed: bool = False) -> bytes | None:
        """
        Return the content of a file of the checkpoint, ``None`` if it does not exist.

        :param path: path below the checkpoint, such as ``offsets/7``.
        :param listed: whether its directory was listed just now, see :func:`read_bytes`.
        """
        return read_bytes(self.fs, f"{self.root}/{path}", listed=listed)

    def read_text(self, path: str, *, listed: bool = False) -> str | None:
        """Return the text of a file of the checkpoint, as :meth:`read_file` reads it."""
        data = self.read_file(path, listed=listed)
        return None if data is None else decode(data, self.name(path))

    def list_names(self, directory: str) -> list[str]:
        """Return the current names in a directory of the checkpoint; empty if it does not exist."""
        return list_names(self.fs, f"{self.root}/{directory}")

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the checkpoint atomically; refuse a path that leads out of the checkpoint."""
        replace_file(self.fs, self._inside(path), data)

    def remove_file(self, path: str) -> None:
        """Remove a file of the checkpoint, if it exists; refuse a path that leads out of the checkpoint."""
        remove_file(self.fs, self._inside(path))

    def behind_link(self, path: str) -> str | None:
        """Return why a file must not be changed: a directory above it is a link; ``None`` otherwise."""
        # Only local file systems have links. The checkpoint's own directory may be one: the user named it.
        if isinstance(self.fs, LocalFileSystem):
            for directory in reversed(Path(path).parents[:-1]):
                if Path(self.root, directory).is_symlink():
                    return (
                        f"{self.name(str(directory))}: is a symbolic link, which may lead anywhere; a "
                        "checkpoint is not changed through links: make it a directory"
                    )
        return None

    def _inside(self, path: str) -> str:
        if not is_plain(path) or any(part in ("", ".", "..") for part in path.split("/")):
            raise CheckpointError(f"{self.location}: {path!r} is not the path of a file below the checkpoint")
        if refusal := self.behind_link(path):
            raise CheckpointError(refusal)
        return f"{self.root}/{path}"

    def query_id(self) -> str:
        """Return the query's id; a CheckpointNotFoundError describes what the location contains instead."""
        text = self.read_text("metadata")
        if text is None:
            raise CheckpointNotFoundError(
                f"{self.location}: found {self._describe_content()}; expected the directory that the Spark "
                "job has as checkpointLocation, with the file metadata and directories offsets and commits"
            )
        return parse_query_id(text, self.name("metadata"))

    def _describe_content(self) -> str:
        """Return what is there without the file ``metadata``: the first names in the directory."""
        try:
            names = sorted(filter(None, list_names(self.fs, self.root)))
        except StorageError:  # a file, or no right to list
            return "no directory that can be listed"
        if names:
            return f"a directory with {join_first(names, show=shorten)}"
        # A path without a scheme may belong to Spark's default file system, or to a Databricks volume.
        return f"nothing{' on this machine' if isinstance(self.fs, LocalFileSystem) else ''}"

    def listed(self, *, exact: bool = True) -> tuple[set[int], set[int]]:
        """
        Return the batches in ``offsets`` and the batches in ``commits``.

        :param exact: whether to read the newest files to correct listings that may be late.
        :raises CheckpointFormatError: if there are commits, but no batch is in both directories.
        """
        # List offsets before commits. Spark writes offsets/N, runs the batch, then writes commits/N. In this
        # order, a batch that looks pending had no commit at a later moment, so it was not finished. In the
        # other order the query could finish N and plan N+1 between the listings: the finished batch N would
        # look pending. This order can only miss batches that were planned after the first listing: the state
        # is then slightly old, but never wrong.
        exact = exact and may_list_late(self.fs)
        planned = self.batches("offsets")
        if exact:
            self._correct_planned(planned)
        committed = self.batches("commits")
        if exact:
            self._correct_committed(committed, planned)
        if committed and not planned & committed:
            raise _NoCommonBatchError(self.location, planned, committed)
        return planned, committed

    def batches(self, directory: str) -> set[int]:
        """Return the batches that a listing of ``offsets`` or ``commits`` shows now."""
        # A missing directory is valid: the query has not planned a batch yet.
        names = self.list_names(directory)
        return {number for name in names if INDEX.fullmatch(name) and (number := int(name)) <= _LAST_BATCH}

    def has(self, directory: str, batch_id: int) -> bool:
        """Return whether a batch has a file in ``offsets`` or ``commits``, listed or not."""
        return self.read_file(f"{directory}/{batch_id}") is not None

    # The listing of an object store may lack a file that was just written, and may still show a removed one.
    # This concerns only the newest batches, so reading their files corrects the listing.

    def _correct_planned(self, planned: set[int]) -> None:
        newest = max(planned, default=-1)
        # Spark numbers batches one by one: an unlisted batch has the next number.
        while self.has("offsets", newest + 1):
            newest += 1
            planned.add(newest)
        # Only the newest batches can be listed but removed: restore and truncate remove from that end.
        while planned and not self.has("offsets", max(planned)):
            planned.remove(max(planned))

    def _correct_committed(self, committed: set[int], planned: set[int]) -> None:
        newest = max(planned, default=-1)
        while max(committed, default=-1) > newest and not self.has("commits", max(committed)):
            committed.remove(max(committed))
        last = max(committed, default=-1)
        # In their order: without its directory commits, a checkpoint may have any number of planned batches.
        committed.update(takewhile(partial(self.has, "commits"), sorted(n for n in planned if n > last)))

    def _batch_file(self, directory: str, batch_id: int) -> tuple[str, str]:
        """Return the text and the name of a batch's file."""
        path = f"{directory}/{batch_id}"
        text = self.read_text(path)
        if text is None:
            raise _FileGoneError(self.name(path))
        return text, self.name(path)

    def name(self, path: str) -> str:
        """Return the name of a checkpoint's file for messages."""
        return f"{self.location.rstrip('/')}/{path}"
