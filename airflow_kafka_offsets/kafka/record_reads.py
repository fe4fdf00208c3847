"""The part of the client that fetches records: their times, sizes and offsets, and the records themselves."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka.fetching import SAMPLES, SCANS, EnoughError, FetchConnections
from airflow_kafka_offsets.kafka.logs import read_logs
from airflow_kafka_offsets.kafka.session import LONGEST_TIMEOUT, Session
from airflow_kafka_offsets.model.offset_ranges import (
    Ranges,
    RangesByPartition,
    count_offsets,
    covering_ranges,
    merge,
    subtract,
)
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    IsolationLevel,
    OffsetRange,
    Offsets,
    TopicPartition,
    summarize,
)
from airflow_kafka_offsets.model.parameters import parse_seconds
from airflow_kafka_offsets.model.text import plural

log = logging.getLogger(__name__)

_TIMES_WITHIN, _RECORDS_WITHIN = 10.0, 30.0
"""Seconds for all partitions, if the caller gives none."""
_SINCE_WITHIN = 600.0
"""Seconds to look for a time in records: a million takes about ten seconds."""
_SAMPLE = 100
"""Maximum number of records of a partition whose sizes are read."""
_LARGEST_GAP_READ = 20_000
"""Gaps up to this number of offsets are read: a new position costs a round trip and discards fetched data."""
_MOST_RECORDS = 100_000
"""Maximum number of records that are looked up; the rest stays unread."""
_PROGRESS = 10.0
"""Seconds between two lines in the log."""


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    """In milliseconds since 1970; -1 if the record has no timestamp."""
    key: bytes | None
    value: bytes | None
    appended: bool = False
    """Whether the broker has set the timestamp (``LogAppendTime``)."""


class RecordOffsets(NamedTuple):
    """The result of reading ranges of logs."""

    records: RangesByPartition
    """Offsets with a record that a ``read_committed`` consumer receives."""
    unread: RangesByPartition
    """Offsets that were not read: deleted by retention, out of time, or after enough records were found."""


class RecordReads:
    """
    Base of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient`: the calls that fetch records.

    The user needs the right Read on the topics; each call raises a BrokerAuthenticationError without it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._samples = FetchConnections(session, SAMPLES)
        self._scans = FetchConnections(session, SCANS)

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """
        Return the time of the first record at or after each offset, in milliseconds since 1970.

        The result lacks partitions that did not answer in time; it is empty if the broker cannot be reached.
        Records without a time, or that cannot be read, are left out as well.

        :param offsets: partition -> first offset to read; an offset below the log start counts as the log
            start.
        :param within: seconds for the call; default: 10, or the client's timeout if that is less.
        :param isolation_level: ``read_committed`` skips the records of aborted transactions, and stops before
            the first open transaction.
        :return: partition -> time; ``None`` if no record follows before the log end: at the log end, or if
            only transaction markers follow.
        :raises UnknownTopicPartitionError: if the broker does not have one of the partitions.
        """
        session = self._session
        timeout = min(session.timeout, _TIMES_WITHIN) if within is None else within
        if timeout <= 0:
            raise UsageError(f"within={within} leaves no time; expected seconds above 0")
        parse_seconds(timeout, "within", maximum=LONGEST_TIMEOUT, allow_zero=False)
        wanted = sorted(offsets)
        with session.begin_call(f"looking up the times of records in {summarize(wanted)}", timeout) as call:
            try:
                with session.exclusive(call):
                    logs = read_logs(session, call, wanted, isolation_level)
            except BrokerUnavailableError as error:
                log.info("The times of records stay unknown: %s", error)
                return {}
            times: dict[TopicPartition, int | None] = {}

            def take(tp: TopicPartition, message: Message) -> bool:
                kind, timestamp = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE and timestamp >= 0:
                    times[tp] = timestamp
                return True

            # This uses a separate Consumer, so that other threads' calls need not wait.
            starts = {tp: max(offset, logs[tp].start) for tp, offset in offsets.items()}
            ranges = {tp: OffsetRange(at, MAX_OFFSET) for tp, at in starts.items() if at < logs[tp].end}
            _, ended = self._samples.read(ranges, take, call, isolation_level)
        return {tp: times.get(tp) for tp in wanted if tp in times or tp in ended or tp not in ranges}

    def read_records(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Callable[[TopicPartition, Record], None],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Offsets:
        """
        Give the records of ranges to a function.

        :param take: takes the records; those of a partition come in order.
        :param within: seconds for it; default: 30, or the client's timeout if that is less.
        :return: how far each partition was read: the end of its range, unless the time was up.
        """

        def take_message(tp: TopicPartition, message: Message) -> None:
            kind, timestamp = message.timestamp()
            timestamp = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
            appended = kind == TIMESTAMP_LOG_APPEND_TIME
            take(tp, Record(message.offset(), timestamp, message.key(), message.value(), appended))

        timeout = min(self._session.timeout, _RECORDS_WITHIN) if within is None else within
        with self._session.begin_call(f"reading records of {summarize(ranges)}", timeout) as call:
            reached, ended = self._scans.read(ranges, take_message, call, isolation_level)
        return reached | {tp: ranges[tp].end for tp in ended}

    def first_since(
        self, ranges: Mapping[TopicPartition, OffsetRange], timestamp_ms: int
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """
        Return the offset and the time of the first record in each range that is not older than a time.

        Transaction markers are no records.

        :param ranges: ranges inside the logs.
        :return: ``None`` for a range whose records are all older. Ranges that could not be read within ten
            minutes are left out.
        """
        found: dict[TopicPartition, tuple[int, int]] = {}

        def take(tp: TopicPartition, message: Message) -> bool:
            kind, timestamp = message.timestamp()
            if kind == TIMESTAMP_NOT_AVAILABLE or timestamp < timestamp_ms:
                return False
            found[tp] = message.offset(), timestamp
            return True

        what = f"looking for a time in the records of {summarize(ranges)}"
        with self._session.begin_call(what, _SINCE_WITHIN) as call:
            reached, _ = self._scans.read(ranges, take, call, "read_uncommitted")
        return {tp: found.get(tp) for tp, each in ranges.items() if tp in found or reached[tp] >= each.end}

    def record_sizes(self, offsets: Offsets, *, within: float = 5.0) -> dict[TopicPartition, list[int]]:
        """
        Return the bytes of key, value and headers for up to 100 records at or after each offset.

        The client cannot ask the broker for the sizes of logs. Partitions that did not respond in time, or
        have no record at or after the offset, are omitted.

        :param offsets: offsets to read from, inside the logs.
        """
        sizes: dict[TopicPartition, list[int]] = {}

        def take(tp: TopicPartition, message: Message) -> bool:
            headers = sum(len(name) + len(value or b"") for name, value in message.headers() or ())
            sizes.setdefault(tp, []).append(len(message.key() or b"") + len(message.value() or b"") + headers)
            return len(sizes[tp]) >= _SAMPLE

        ranges = {tp: OffsetRange(at, MAX_OFFSET) for tp, at in offsets.items()}
        with self._session.begin_call(
            f"reading the sizes of records in {summarize(offsets)}", within
        ) as call:
            self._samples.read(ranges, take, call, "read_uncommitted")
        return sizes

    def record_offsets(self, ranges: RangesByPartition, *, within: float) -> RecordOffsets:
        """
        Return which offsets of some ranges have a record that a ``read_committed`` consumer receives.

        :param ranges: ranges inside the logs: from the log start to the last stable offset.
        """
        # The offsets between two ranges are read only if the ranges are near each other.
        pieces = {tp: covering_ranges(its, len(its), _LARGEST_GAP_READ) for tp, its in ranges.items() if its}
        found: dict[TopicPartition, list[int]] = {}
        read: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in pieces}
        number = plural(count_offsets(ranges), "offset")
        messages, wanted, shown = 0, _MOST_RECORDS, time.monotonic()

        def take(tp: TopicPartition, message: Message) -> None:
            nonlocal messages, wanted, shown
            messages += 1
            if time.monotonic() - shown >= _PROGRESS:
                shown = time.monotonic()
                log.info("Read %s to look up %s", plural(messages, "record"), number)
            offset = message.offset()
            if _contains(ranges[tp], offset):
                found.setdefault(tp, []).append(offset)
                wanted -= 1
                if not wanted:
                    raise EnoughError

        what = f"looking up records at {number} of {summarize(ranges)}"
        with self._session.begin_call(what, within) as call:
            for place in range(max(map(len, pieces.values()), default=0)):
                if not wanted or call.seconds_left <= 0:
                    break
                piece = {tp: its[place] for tp, its in pieces.items() if place < len(its)}
                reached, _ = self._scans.read(piece, take, call, "read_committed")
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
