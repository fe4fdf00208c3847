"""
Lists the batches of a checkpoint, also where a listing is late.

An object store may not list yet what was just written, and still list what was just removed. Only the newest
batches can be either, and reads of their files say which.
"""

from __future__ import annotations

import re

from fsspec import AbstractFileSystem

from airflow_kafka_offsets.errors import CheckpointFormatError
from airflow_kafka_offsets.storage import list_names, may_list_late, read_bytes

_BATCH = re.compile(r"0|[1-9][0-9]{0,999}")
"""Names of batch files. Beside them are ``.7.crc``, ``.7.<uuid>.tmp`` and whatever people leave behind."""
# Spark's batch ids are Java's Long.
_LAST_BATCH = 2**63 - 1


def planned_and_committed(
    fs: AbstractFileSystem, root: str, location: str, *, exact: bool
) -> tuple[set[int], set[int]]:
    """
    Return the batches in ``offsets`` and those in ``commits``.

    :param location: of the checkpoint, for errors.
    :param exact: whether to correct listings that may be late by reads of the newest files.
    :raises CheckpointFormatError: if there are commits, and no batch is in both.
    """
    # Offsets before commits. Spark writes offsets/N, runs the batch, writes commits/N. Listed in the same
    # order, a batch that looks pending has no commit at a later moment, so it was really not finished.
    # The other way round the query could finish N and plan N+1 between the listings: N, though done,
    # would look pending. What this order misses is only what was planned after the first listing: the
    # state is then a moment old, never wrong.
    exact = exact and may_list_late(fs)
    planned = listed_batches(fs, root, "offsets")
    if exact:
        _correct_planned(fs, root, planned)
    committed = listed_batches(fs, root, "commits")
    if exact:
        _correct_committed(fs, root, committed, planned)
    if committed and not planned & committed:
        raise NoCommonBatchError(location, planned, committed)
    return planned, committed


def listed_batches(fs: AbstractFileSystem, root: str, directory: str) -> set[int]:
    """Return the batches that are listed in ``offsets`` or ``commits`` now."""
    # None, no such directory, is right for a query that has not planned a batch yet.
    names = list_names(fs, f"{root}/{directory}") or []
    # Spark takes a longer number for another file's name.
    return {number for name in names if _BATCH.fullmatch(name) and (number := int(name)) <= _LAST_BATCH}


def has_batch(fs: AbstractFileSystem, root: str, directory: str, batch_id: int) -> bool:
    """Return whether a batch has a file in ``offsets`` or ``commits``, listed or not."""
    return read_bytes(fs, f"{root}/{directory}/{batch_id}") is not None


def _correct_planned(fs: AbstractFileSystem, root: str, planned: set[int]) -> None:
    newest = max(planned, default=-1)
    # Spark numbers batches one by one, so what is not listed follows directly.
    while has_batch(fs, root, "offsets", newest + 1):
        newest += 1
        planned.add(newest)
    # Only the newest can be listed and gone: a restore or a truncate removes from that end.
    while planned and not has_batch(fs, root, "offsets", max(planned)):
        planned.remove(max(planned))


def _correct_committed(fs: AbstractFileSystem, root: str, committed: set[int], planned: set[int]) -> None:
    newest = max(planned, default=-1)
    committed -= {n for n in committed if n > newest and not has_batch(fs, root, "commits", n)}
    last = max(committed, default=-1)
    committed |= {n for n in planned if n > last and has_batch(fs, root, "commits", n)}


class NoCommonBatchError(CheckpointFormatError):
    """A commit, and no batch in both directories: between the listings, or files were removed by hand."""

    def __init__(self, location: str, planned: set[int], committed: set[int]) -> None:
        offsets = f"{min(planned)} to {max(planned)}" if planned else "of no batch"
        super().__init__(
            f"{location}: found commits up to {max(committed)} and offsets {offsets}; expected a "
            "batch that is in both: files were removed by hand, the copy is not complete, or the query "
            "removes batches faster than they can be read (then raise "
            "spark.sql.streaming.minBatchesToRetain, or try again)"
        )
