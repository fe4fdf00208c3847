"""Reads the records of ranges of offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.fetching import END_OF_LOG, FetchConnections, fetch
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    OffsetRange,
    Offsets,
    TopicPartition,
    check_partitions,
)

SETTINGS = {"fetch.message.max.bytes": 512 * 1024, "queued.max.messages.kbytes": 16 * 1024}
_CHUNK = 200
"""Partitions that are fetched together."""
_NOT_THERE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
"""Error codes: the offset to begin at is not in the log."""


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    """In milliseconds since 1970; -1 if the record has no timestamp."""
    key: bytes | None
    value: bytes | None
    appended: bool = False
    """Whether the broker has set the timestamp (``LogAppendTime``)."""


Take = Callable[[TopicPartition, Record], None]
"""Takes the records of ranges; the records of a partition come in order."""


def read_records(
    connections: FetchConnections,
    ranges: Mapping[TopicPartition, OffsetRange],
    take: Take,
    call: Call,
    isolation_level: IsolationLevel,
) -> Offsets:
    """Give the records of ranges to ``take``; return how far each partition was read."""
    reached = {tp: each.start for tp, each in ranges.items()}
    wanted = [tp for tp, each in sorted(ranges.items()) if each.size > 0]
    check_partitions(wanted)
    if not wanted:
        return reached
    with connections.use(wanted, call, isolation_level) as connection:
        if connection is None:
            return reached
        for first in range(0, len(wanted), _CHUNK):
            left = set(wanted[first : first + _CHUNK])
            starts = {tp: ranges[tp].start for tp in left}
            for tp, message, failure in fetch(connection, starts, left, call):
                end = ranges[tp].end
                if failure is None:
                    offset = message.offset()
                    if offset < end:
                        kind, timestamp = message.timestamp()
                        time = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
                        take(
                            tp,
                            Record(
                                offset,
                                time,
                                message.key(),
                                message.value(),
                                kind == TIMESTAMP_LOG_APPEND_TIME,
                            ),
                        )
                    reached[tp] = min(offset + 1, end)
                elif failure.code == END_OF_LOG:
                    # No record follows that this isolation level can read.
                    reached[tp] = end
                if reached[tp] == end or (failure is not None and failure.code in _NOT_THERE):
                    left.remove(tp)
    return reached
