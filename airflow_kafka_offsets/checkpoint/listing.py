"""
Lists the batches of a checkpoint, also on storages whose listings are late.

The listing of an object store may lack a file that was just written, and may still show a removed one. This
concerns only the newest batches, so reading their files corrects the listing.
"""

from __future__ import annotations

import re

from fsspec import AbstractFileSystem

from airflow_kafka_offsets.errors import CheckpointFormatError
from airflow_kafka_offsets.storage import list_names, may_list_late, read_bytes

_BATCH = re.compile(r"0|[1-9][0-9]{0,999}")
"""Names of batch files. The directories also contain ``.7.crc``, ``.7.<uuid>.tmp`` and users' files."""
# Spark's batch ids are Java's Long.
_LAST_BATCH = 2**63 - 1


def planned_and_committed(
    fs: AbstractFileSystem, root: str, location: str, *, exact: bool
) -> tuple[set[int], set[int]]:
    """
    Return the batches in ``offsets`` and the batches in ``commits``.

    :param location: the checkpoint's location, for errors.
    :param exact: whether to read the newest files to correct listings that may be late.
    :raises CheckpointFormatError: if there are commits, but no batch is in both directories.
    """
    # List offsets before commits. Spark writes offsets/N, runs the batch, then writes commits/N. In this
    # order, a batch that looks pending had no commit at a later moment, so it was not finished. In the other
    # order the query could finish N and plan N+1 between the listings: the finished batch N would look
    # pending. This order can only miss batches that were planned after the first listing: the state is then
    # slightly old, but never wrong.
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
    """Return the batches that a listing of ``offsets`` or ``commits`` shows now."""
    # A missing directory is valid: the query has not planned a batch yet.
    names = list_names(fs, f"{root}/{directory}") or []
    # Spark does not read a longer number as a batch.
    return {number for name in names if _BATCH.fullmatch(name) and (number := int(name)) <= _LAST_BATCH}


def has_batch(fs: AbstractFileSystem, root: str, directory: str, batch_id: int) -> bool:
    """Return whether a batch has a file in ``offsets`` or ``commits``, listed or not."""
    return read_bytes(fs, f"{root}/{directory}/{batch_id}") is not None


def _correct_planned(fs: AbstractFileSystem, root: str, planned: set[int]) -> None:
    newest = max(planned, default=-1)
    # Spark numbers batches one by one: an unlisted batch has the next number.
    while has_batch(fs, root, "offsets", newest + 1):
        newest += 1
        planned.add(newest)
    # Only the newest batches can be listed but removed: restore and truncate remove from that end.
    while planned and not has_batch(fs, root, "offsets", max(planned)):
        planned.remove(max(planned))


def _correct_committed(fs: AbstractFileSystem, root: str, committed: set[int], planned: set[int]) -> None:
    newest = max(planned, default=-1)
    committed -= {n for n in committed if n > newest and not has_batch(fs, root, "commits", n)}
    last = max(committed, default=-1)
    committed |= {n for n in planned if n > last and has_batch(fs, root, "commits", n)}


class NoCommonBatchError(CheckpointFormatError):
    """No batch is in both directories: read between two listings, or files were removed by hand."""

    def __init__(self, location: str, planned: set[int], committed: set[int]) -> None:
        offsets = f"{min(planned)} to {max(planned)}" if planned else "of no batch"
        super().__init__(
            f"{location}: found commits up to {max(committed)} and offsets {offsets}; expected a "
            "batch that is in both: files were removed by hand, the copy is not complete, or the query "
            "removes batches faster than they can be read (then raise "
            "spark.sql.streaming.minBatchesToRetain, or try again)"
        )
