"""Finds which offsets of logs have records, by reading only the given ranges."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connection
from airflow_kafka_offsets.kafka.failures import (
    FINAL,
    RETRIABLE,
    UNKNOWN_PARTITION,
    CallError,
    Deadline,
    Failure,
)
from airflow_kafka_offsets.model.offset_ranges import Ranges, RangesByPartition, clip, count_offsets, merge
from airflow_kafka_offsets.model.offsets import TopicPartition

log = logging.getLogger(__name__)

_FETCHES = {
    # Reports the end of the log, even if only transaction markers precede it.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16 * 1024,
}
_PARTITIONS = 50
"""Number of partitions read at once."""
_LARGEST_GAP_READ = 20_000
"""Gaps up to this number of offsets are read: a seek costs a round trip and discards fetched data."""
_AT_ONCE = 5_000
_PROGRESS = 10.0
_CLOSE = 5.0
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Ignored: fetching needs no group."""


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
    at: int = 0
    read_to: int = 0
    found: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read_to = self.ranges[0].start

    @property
    def done(self) -> bool:
        return self.at == len(self.ranges)

    @property
    def seek(self) -> int | None:
        """The offset to continue reading at, if it is far from the current one."""
        start = self.ranges[self.at].start
        return start if start - self.read_to > _LARGEST_GAP_READ else None

    def record(self, offset: int) -> int:
        """Record the next message; return 1 if it is in a range."""
        if offset < self.read_to or self.done:
            return 0  # fetched before a seek
        self.reach(offset)
        inside = self.at < len(self.ranges) and self.ranges[self.at].start <= offset
        if inside:
            if self.found and self.found[-1][1] == offset:
                self.found[-1] = (self.found[-1][0], offset + 1)
            else:
                self.found.append((offset, offset + 1))
        self.reach(offset + 1)
        return int(inside)

    def reach(self, offset: int) -> None:
        """Record that there is no other record before ``offset``."""
        self.read_to = max(self.read_to, offset)
        while not self.done and self.ranges[self.at].end <= offset:
            self.at += 1

    @property
    def unread(self) -> Ranges:
        return () if self.done else clip(self.ranges[self.at :], self.read_to, self.ranges[-1].end)


def read_record_offsets(
    config: Mapping[str, Any], ranges: RangesByPartition, deadline: Deadline, most: int
) -> RecordOffsets:
    """
    Read ranges of logs, and return which of their offsets have a record.

    The offsets between two ranges are read only if the ranges are near each other.

    :param config: the client's settings.
    :param ranges: ranges inside the logs: from the log start to the last stable offset.
    :param most: maximum number of records to read; the rest stays unread.
    :raises CallError: if the broker refuses, for example because a right is missing.
    """
    walks = {tp: _Walk(its) for tp, its in sorted(ranges.items()) if its}
    total = count_offsets(ranges)
    connection = Connection({**config, **_FETCHES}, OWN_GROUP, "read_committed")
    try:
        found = 0
        todo = list(walks)
        progress = _Progress(total)
        while todo and deadline.seconds_left > 0 and found < most:
            chunk, todo = todo[:_PARTITIONS], todo[_PARTITIONS:]
            found += _read(connection, {tp: walks[tp] for tp in chunk}, deadline, most - found, progress)
    finally:
        connection.consumer.close()
    return RecordOffsets(
        {tp: merge(walk.found) for tp, walk in walks.items() if walk.found},
        {tp: walk.unread for tp, walk in walks.items() if walk.unread},
    )


def _read(
    connection: Connection,
    walks: dict[TopicPartition, _Walk],
    deadline: Deadline,
    most: int,
    progress: _Progress,
) -> int:
    wanted = [ClientPartition(tp.topic, tp.partition, walk.read_to) for tp, walk in walks.items()]
    connection.ask(lambda consumer: consumer.assign(wanted))
    left, found = dict(walks), 0
    while left and deadline.seconds_left > 0 and found < most:
        first = connection.consumer.poll(min(1.0, deadline.seconds_left))
        # With a timeout, consume() would wait until it has that many messages.
        messages = [] if first is None else [first, *connection.consumer.consume(_AT_ONCE, 0)]
        ended = set()
        for message in messages:
            tp = TopicPartition(str(message.topic()), message.partition() or 0)
            if (walk := left.get(tp)) is None or tp in ended:
                _note(connection, message)
            elif message.error() is None:
                found += walk.record(message.offset() or 0)
                progress.read += 1
            elif _ends(connection, message, walk):
                ended.add(tp)
        if connection.background_errors.fatal is not None:
            raise CallError(connection.background_errors.fatal)
        ended |= {tp for tp, walk in left.items() if walk.done}
        _move_on(
            connection, left, ended, {TopicPartition(str(m.topic()), m.partition() or 0) for m in messages}
        )
        progress.show()
    return found


def _ends(connection: Connection, message: Message, walk: _Walk) -> bool:
    """Return whether a partition delivers no more messages after an error."""
    failure = Failure.from_error(message.error())
    if failure.code == "_PARTITION_EOF":
        walk.reach(message.offset() or 0)
        return True
    if failure.code in RETRIABLE | UNKNOWN_PARTITION:
        return False  # the client retries these
    _note(connection, message)
    log.info("Read no further: %s", connection.scrub(str(failure)))
    return True


def _note(connection: Connection, message: Message) -> None:
    error = message.error()
    if error is not None and (code := Failure.from_error(error).code) in FINAL and code != _OF_THE_GROUP:
        connection.background_errors.add_error(error)


def _move_on(
    connection: Connection,
    left: dict[TopicPartition, _Walk],
    ended: set[TopicPartition],
    active: set[TopicPartition],
) -> None:
    """Unassign finished partitions, and seek over large gaps between ranges."""
    for tp in ended:
        del left[tp]
    if ended and left:
        gone = [ClientPartition(*tp) for tp in sorted(ended)]
        connection.ask(methodcaller("incremental_unassign", gone))
    elif not left:
        connection.ask(methodcaller("unassign"))
    for tp in active & left.keys():
        # A partition can seek only after it has delivered a message.
        if (offset := left[tp].seek) is not None:
            left[tp].read_to = offset
            position = ClientPartition(tp.topic, tp.partition, offset)
            connection.ask(methodcaller("seek", position))


@dataclass
class _Progress:
    """Logs the progress of the reading from time to time."""

    total: int
    read: int = 0
    shown: float = field(default_factory=time.monotonic)

    def show(self) -> None:
        if time.monotonic() - self.shown >= _PROGRESS:
            self.shown = time.monotonic()
            log.info("Read %s records to look up %s offsets", f"{self.read:,}", f"{self.total:,}")
