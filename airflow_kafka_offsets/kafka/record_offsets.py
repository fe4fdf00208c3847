"""Finds which offsets of logs have records, by reading only the given ranges."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from operator import methodcaller
from typing import NamedTuple

from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.fetching import END_OF_LOG, FetchConnections, fetch
from airflow_kafka_offsets.model.offset_ranges import Ranges, RangesByPartition, clip, count_offsets, merge
from airflow_kafka_offsets.model.offsets import TopicPartition

log = logging.getLogger(__name__)

SETTINGS = {"queued.max.messages.kbytes": 16 * 1024}
_PARTITIONS = 50
"""Number of partitions read at once."""
_LARGEST_GAP_READ = 20_000
"""Gaps up to this number of offsets are read: a seek costs a round trip and discards fetched data."""
_PROGRESS = 10.0
"""Seconds between two lines in the log."""


class RecordOffsets(NamedTuple):
    """The result of reading ranges of logs."""

    records: RangesByPartition
    """Offsets with a record that a ``read_committed`` consumer receives."""
    unread: RangesByPartition
    """Offsets that were not read: deleted by retention, out of time, or after enough records were found."""


@dataclass
class _Walk:
    """Reads the ranges of one partition, in order."""

    ranges: Ranges
    read_to: int
    at: int = 0
    found: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.at == len(self.ranges)

    @property
    def seek(self) -> int | None:
        """The offset to continue reading at, if it is far from the current one."""
        start = self.ranges[self.at].start
        return start if start - self.read_to > _LARGEST_GAP_READ else None

    def record(self, offset: int) -> bool:
        """Record the next message; return whether it is in a range."""
        if offset < self.read_to:
            return False  # fetched before a seek
        self.reach(offset)
        inside = not self.done and self.ranges[self.at].start <= offset
        if inside:
            self.found.append(offset)
        self.reach(offset + 1)
        return inside

    def reach(self, offset: int) -> None:
        """Record that there is no other record before ``offset``."""
        self.read_to = max(self.read_to, offset)
        while not self.done and self.ranges[self.at].end <= offset:
            self.at += 1

    @property
    def unread(self) -> Ranges:
        return () if self.done else clip(self.ranges[self.at :], self.read_to, self.ranges[-1].end)


def read_record_offsets(
    connections: FetchConnections, ranges: RangesByPartition, call: Call, most: int
) -> RecordOffsets:
    """
    Read ranges of logs, and return which of their offsets have a record.

    The offsets between two ranges are read only if the ranges are near each other.

    :param ranges: ranges inside the logs: from the log start to the last stable offset.
    :param most: maximum number of records to read; the rest stays unread.
    """
    walks = {tp: _Walk(its, its[0].start) for tp, its in sorted(ranges.items()) if its}
    progress = _Progress(count_offsets(ranges))
    found = 0
    with connections.use(walks, call, "read_committed") as connection:
        todo = list(walks)
        while connection is not None and todo and call.seconds_left > 0 and found < most:
            chunk, todo = todo[:_PARTITIONS], todo[_PARTITIONS:]
            found += _read(connection, {tp: walks[tp] for tp in chunk}, call, most - found, progress)
    return RecordOffsets(
        {tp: merge((at, at + 1) for at in walk.found) for tp, walk in walks.items() if walk.found},
        {tp: walk.unread for tp, walk in walks.items() if walk.unread},
    )


def _read(
    connection: Connection,
    walks: dict[TopicPartition, _Walk],
    call: Call,
    most: int,
    progress: _Progress,
) -> int:
    """Read some partitions; return the number of records in the ranges."""
    left, found = set(walks), 0
    for tp, message, failure in fetch(
        connection, {tp: walk.read_to for tp, walk in walks.items()}, left, call
    ):
        walk = walks[tp]
        if failure is None:
            found += walk.record(message.offset())
            progress.count()
        elif failure.code == END_OF_LOG:
            walk.reach(message.offset())
        else:
            log.info("Read no further: %s", connection.scrub(str(failure)))
        if failure is not None or walk.done:
            left.remove(tp)
        elif (offset := walk.seek) is not None:
            # A partition can seek only after it has delivered a message.
            walk.read_to = offset
            connection.ask(methodcaller("seek", ClientPartition(*tp, offset)))
        if found >= most:
            break
    return found


@dataclass
class _Progress:
    """Logs the progress of the reading from time to time."""

    total: int
    read: int = 0
    shown: float = field(default_factory=time.monotonic)

    def count(self) -> None:
        self.read += 1
        if time.monotonic() - self.shown >= _PROGRESS:
            self.shown = time.monotonic()
            log.info("Read %s records to look up %s offsets", f"{self.read:,}", f"{self.total:,}")
