"""
The batches that a checkpoint still has: when each was planned, how long it took, how much it read.

Spark keeps the files of about the last hundred batches (``spark.sql.streaming.minBatchesToRetain``). A batch
ends at the offsets in its file in ``offsets/``, and begins where the previous batch ends. If a seek has since
written other offsets into that file, the seek's archive has the original ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple

from airflow_kafka_offsets.checkpoint.archive import moves_of_batch, read_archived_move
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import archive_names
from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry, check_commit_log, parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import StorageUnavailableError
from airflow_kafka_offsets.model.checkpoint_plan import sources_json
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.storage import modified_at

LAST = 100
"""Number of batches shown by default; Spark keeps about the same number."""

_AT_ONCE = 16
"""Files that are read at the same time."""

_RESOLUTION = timedelta(seconds=1)
"""Resolution of a file's time on an object store."""

_WRITTEN_WITHIN = timedelta(seconds=30)
"""Largest difference between a batch's planning and its file's time: slow storage, or another clock."""


@dataclass(frozen=True)
class PastBatch:
    """
    One batch of a query.

    :param at: when Spark planned it (``batchTimestampMs``, the driver's clock), after it had asked the
        sources for their newest offsets; ``None`` in continuous mode.
    :param duration: seconds from ``at`` to the time of the batch's file in ``commits/`` (the storage's
        clock). A replayed batch counts from its first planning. ``None`` if the batch is not finished, or if
        its file times are unknown or not Spark's: after a copy of the checkpoint or a move.
    :param previous: the previous batch in ``offsets/``, where this one begins; ``None`` for the first known
        one. With asynchronous progress tracking some batches have no files: ``read`` includes them.
    :param read: source -> topic -> records from ``previous`` to here (offset differences, with transaction
        markers and compacted records). ``None`` for a topic if a partition's start is unknown because the
        partition is new, or if its end is before its start. Empty for the first known batch.
    :param offsets: Kafka source -> end offsets.
    :param pending: the batch was begun and is not finished; Spark replays exactly its range.
    :param skipped: it was never finished, although a later batch was; Spark does not run it again.
    :param moved_in: archive of the move that made the query continue from other offsets after this batch.
    :param moved_to: source -> those other offsets; ``None`` if no move changed them.
    """

    batch: int
    at: datetime | None
    duration: float | None
    previous: int | None
    read: Mapping[str, Mapping[str, int | None]]
    offsets: Mapping[str, Offsets]
    pending: bool = False
    skipped: bool = False
    moved_in: str | None = None
    moved_to: Mapping[str, Offsets] | None = None

    @property
    def records(self) -> int | None:
        """Records of all topics; ``None`` if a topic's number is unknown, or there is no Kafka source."""
        counts = [count for topics in self.read.values() for count in topics.values()]
        return sum(count or 0 for count in counts) if counts and None not in counts else None

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, offsets in Spark's form."""
        return {
            "batch": self.batch,
            "at": None if self.at is None else self.at.isoformat(),
            "duration": self.duration,
            "records": self.records,
            "read": {source: dict(topics) for source, topics in self.read.items()},
            "previous": self.previous,
            "pending": self.pending,
            "skipped": self.skipped,
            "offsets": sources_json(self.offsets),
            "moved_in": self.moved_in,
            "moved_to": None if self.moved_to is None else sources_json(self.moved_to),
        }


class CheckpointHistory(NamedTuple):
    """A query, its last batches (oldest first, a pending batch last), and the archives of its moves."""

    query_id: str
    batches: list[PastBatch]
    archives: list[ArchivedMove]


def read_history(checkpoint: SparkCheckpoint, last: int = LAST, *, within: float = 30.0) -> CheckpointHistory:
    """
    Return the last batches of a checkpoint, its query id and its archives; the files are read in parallel.

    :param last: maximum number of batches, at least 1.
    :param within: seconds for the whole call. A request that the storage does not answer is abandoned; it
        does not keep the process alive.
    """
    call = partial(_call_in_parallel, checkpoint.location, within, monotonic() + within)
    ((query_id, planned, committed, names),) = call([partial(_list_checkpoint, checkpoint)])
    done = planned & committed
    newest = max(done, default=-1)
    wanted = sorted(planned)[-last - 1 :]  # one more: the first batch begins where that one ends
    finished = [number for number in wanted if number in committed]
    found = call(
        [
            *(partial(_read_batch, checkpoint, number, finished=number in finished) for number in wanted),
            *(partial(_check_commit, checkpoint, number) for number in finished[-1:]),
            # All archives: a batch may have been moved several times, and a move to an older one taken back.
            *(partial(read_archived_move, checkpoint, name) for name in names),
        ]
    )
    archives = [each for each in found[len(wanted) :] if each is not None]
    batches: list[PastBatch] = []
    for number, files in zip(wanted, found, strict=False):
        if files is None:  # since the listing, the query has removed an old batch
            continue
        entry, at, duration = files
        moves = moves_of_batch(reversed(archives), number, entry.text.encode())
        ends = moves[-1].before if moves else entry.kafka_offsets
        before = batches[-1] if batches else None
        batches.append(
            PastBatch(
                batch=number,
                at=at,
                duration=duration,
                previous=None if before is None else before.batch,
                read={} if before is None else _records_between(before.moved_to or before.offsets, ends),
                offsets=ends,
                pending=number > newest,
                skipped=number not in committed and min(done, default=newest) < number < newest,
                moved_in=moves[0].name if moves else None,
                moved_to=entry.kafka_offsets if moves else None,
            )
        )
    return CheckpointHistory(query_id, batches[-last:], archives)


def _list_checkpoint(checkpoint: SparkCheckpoint) -> tuple[str, set[int], set[int], list[str]]:
    return (checkpoint.query_id(), *checkpoint.listed(exact=False), archive_names(checkpoint, exact=False))


def _read_batch(
    checkpoint: SparkCheckpoint, number: int, *, finished: bool
) -> tuple[OffsetLogEntry, datetime | None, float | None] | None:
    """Return a batch's file, when it was planned, and its duration; ``None`` without a file."""
    path = f"offsets/{number}"
    if (text := checkpoint.read_text(path, listed=True)) is None:
        return None
    entry = parse_offset_log(text, checkpoint.name(path))
    moment = entry.batch_timestamp_ms
    at = None if moment is None else datetime.fromtimestamp(moment / 1000, tz=timezone.utc)
    if at is None or not finished:
        return entry, at, None
    planned, committed = (
        modified_at(checkpoint.fs, f"{checkpoint.root}/{directory}/{number}", listed=True)
        for directory in ("offsets", "commits")
    )
    return entry, at, _duration(at, planned, committed)


def _check_commit(checkpoint: SparkCheckpoint, number: int) -> None:
    path = f"commits/{number}"
    if (text := checkpoint.read_text(path, listed=True)) is not None:
        check_commit_log(text, checkpoint.name(path))


def _call_in_parallel(
    location: str, within: float, end: float, calls: Sequence[Callable[[], Any]]
) -> list[Any]:
    """Make calls in parallel until ``end``, and return their results."""
    futures: list[Future[Any]] = [Future() for _ in calls]
    waiting = deque(zip(futures, calls, strict=True))

    def work() -> None:
        while waiting:
            try:
                future, call = waiting.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - raised again by result()
                future.set_exception(error)

    # Daemon threads: Python waits for the threads of a pool when the process ends.
    for _ in calls[:_AT_ONCE]:
        Thread(target=work, daemon=True).start()
    try:
        done, late = wait(futures, timeout=max(0.0, end - monotonic()), return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        if late:
            raise StorageUnavailableError(
                f"{location}: the storage answered {len(done)} of {len(calls)} reads within {within:g} s: "
                f"{'ask for fewer batches, or ' if done else ''}try again"
            )
        return [future.result() for future in futures]
    finally:
        # Threads that still wait for the storage take no further call.
        waiting.clear()


def _duration(at: datetime, planned: datetime | None, committed: datetime | None) -> float | None:
    """Return how long a batch took; ``None`` if Spark did not write its files at that time."""
    if planned is None or committed is None or abs(planned - at) > _WRITTEN_WITHIN:
        return None
    return None if committed < at - _RESOLUTION else max(0.0, (committed - at).total_seconds())


def _records_between(
    start: Mapping[str, Offsets], end: Mapping[str, Offsets]
) -> dict[str, dict[str, int | None]]:
    read: dict[str, dict[str, int | None]] = {}
    for source, offsets in end.items():
        topics = read.setdefault(source, {})
        for tp, offset in offsets.items():
            # Spark reads a new partition from its log start, which may be any offset up to its end.
            first = start.get(source, {}).get(tp, 0 if offset == 0 else None)
            count = None if first is None or first > offset else offset - first
            known = topics.get(tp.topic, 0)
            topics[tp.topic] = None if known is None or count is None else known + count
    return read
