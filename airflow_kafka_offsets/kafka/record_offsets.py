"""Finds which offsets of logs have records, by reading only the given ranges."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from typing import NamedTuple

from confluent_kafka import Message

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.fetching import EnoughError, FetchConnections
from airflow_kafka_offsets.model.offset_ranges import (
    Ranges,
    RangesByPartition,
    count_offsets,
    covering_ranges,
    merge,
    subtract,
)
from airflow_kafka_offsets.model.offsets import TopicPartition

log = logging.getLogger(__name__)

_LARGEST_GAP_READ = 20_000
"""Gaps up to this number of offsets are read: a new position costs a round trip and discards fetched data."""
_PROGRESS = 10.0
"""Seconds between two lines in the log."""


class RecordOffsets(NamedTuple):
    """The result of reading ranges of logs."""

    records: RangesByPartition
    """Offsets with a record that a ``read_committed`` consumer receives."""
    unread: RangesByPartition
    """Offsets that were not read: deleted by retention, out of time, or after enough records were found."""


def read_record_offsets(
    connections: FetchConnections, ranges: RangesByPartition, call: Call, most: int
) -> RecordOffsets:
    """See :meth:`~airflow_kafka_offsets.kafka.client.OffsetsClient.record_offsets`."""
    # The offsets between two ranges are read only if the ranges are near each other.
    pieces = {tp: covering_ranges(its, len(its), _LARGEST_GAP_READ) for tp, its in ranges.items() if its}
    found: dict[TopicPartition, list[int]] = {}
    read: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in pieces}
    messages, wanted, shown = 0, most, time.monotonic()

    def take(tp: TopicPartition, message: Message) -> None:
        nonlocal messages, wanted, shown
        messages += 1
        if time.monotonic() - shown >= _PROGRESS:
            shown = time.monotonic()
            log.info("Read %s records to look up %s offsets", f"{messages:,}", f"{count_offsets(ranges):,}")
        offset = message.offset()
        if _contains(ranges[tp], offset):
            found.setdefault(tp, []).append(offset)
            wanted -= 1
            if not wanted:
                raise EnoughError

    for number in range(max(map(len, pieces.values()), default=0)):
        if not wanted or call.seconds_left <= 0:
            break
        piece = {tp: its[number] for tp, its in pieces.items() if number < len(its)}
        reached, _ = connections.read(piece, take, call, "read_committed")
        for tp, end in reached.items():
            read[tp].append((piece[tp].start, end))
    unread = {tp: subtract(ranges[tp], merge(its)) for tp, its in read.items()}
    return RecordOffsets(
        {tp: merge((at, at + 1) for at in offsets) for tp, offsets in sorted(found.items())},
        {tp: its for tp, its in sorted(unread.items()) if its},
    )


def _contains(ranges: Ranges, offset: int) -> bool:
    before = bisect_right(ranges, offset, key=lambda each: each.start)
    return before > 0 and offset < ranges[before - 1].end
