"""Reads the times of records from the logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from operator import methodcaller
from typing import NamedTuple

from confluent_kafka import OFFSET_END, TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.failures import (
    FINAL,
    RETRIABLE,
    UNKNOWN_PARTITION,
    CallError,
    Deadline,
    Failure,
)
from airflow_kafka_offsets.kafka.logs import read_logs
from airflow_kafka_offsets.kafka.requests import read_offsets
from airflow_kafka_offsets.kafka.session import LONGEST_TIMEOUT, Session
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import parse_seconds

log = logging.getLogger(__name__)

_FETCHES = {
    # Reports the end of the log at once, even if only transaction markers precede it.
    "enable.partition.eof": True,
    # One record of each partition is enough. A larger batch is still fetched, one in each response.
    "fetch.message.max.bytes": 32 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    # All partitions share one queue: the next fetch waits until the queue is empty, and then starts soon.
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 5,
    # Only a response without records reports a log end; the broker delays it by this time.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_WITHIN = 10.0
"""Seconds for all partitions, if the caller gives none."""
_CHUNK = 200
"""Partitions in one request: a response contains up to 32 KB for each."""
_LEAST = 0.5
"""Minimum seconds of a chunk, so that partitions without a leader do not take all the time."""
# Number of messages: more than the partitions of a chunk, so that one call empties the queue.
_AT_ONCE = 1000
# Seconds: closing the Consumer does nothing that is worth waiting for.
_CLOSE = 1.0
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Ignored: fetching needs no group."""


class _Fetched(NamedTuple):
    times: dict[TopicPartition, int | None]
    unreadable: dict[TopicPartition, str]


def positions_in_logs(
    offsets: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogRange]
) -> Offsets:
    """Return the read position of each partition that may have a record at or after its offset."""
    inside = {tp: max(offset, logs[tp].start) for tp, offset in offsets.items()}
    return {tp: offset for tp, offset in inside.items() if offset < logs[tp].end}


class RecordTimeLookup:
    """
    Reads the times of records with a Consumer that stays open; it joins no group and commits nothing.

    Calls of several threads wait for each other, but not for other calls of the client.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connections = Connections({**session.config, **_FETCHES})
        self._topics: set[tuple[IsolationLevel, str]] = set()
        """The isolation levels and topics whose leaders the Consumer knows."""
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close the Consumer; a running call closes it when it ends."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._connections.close(_CLOSE)
            finally:
                self._lock.release()

    def read_at_or_after(
        self, offsets: Mapping[TopicPartition, int], isolation_level: IsolationLevel, within: float | None
    ) -> dict[TopicPartition, int | None]:
        """Return the times of records, see :meth:`OffsetsClient.record_times`."""
        session = self._session
        timeout = min(session.timeout, _WITHIN) if within is None else within
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
            positions = positions_in_logs(offsets, logs)
            # This uses a separate Consumer, so that other threads' calls need not wait.
            try:
                times = self.read(positions, isolation_level, call)
            except CallError as error:
                raise call.explain(error.failure, "Read") from None
        return {tp: times.get(tp) for tp in wanted if tp in times or tp not in positions}

    def read(
        self, positions: Offsets, isolation_level: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, int | None]:
        """
        Return the time of the first record at or after each position; positions must be inside the log.

        :return: partition -> time; ``None`` if no record follows. Partitions are left out if they did not
            answer before the deadline, just lost the position to retention, or have a record that cannot be
            read or has no time.
        :raises CallError: if the broker refuses, for example because a right is missing.
        """
        if not positions or not self._lock.acquire(timeout=deadline.seconds_left):
            return {}
        connection = None
        keep = False
        try:
            connection = self._connections.get(isolation_level)
            self._find_leaders(connection, positions, isolation_level, deadline)
            times, late = _fetch_all(connection, positions, deadline)
            connection.ask(methodcaller("unassign"))
            # A late Consumer may not know a partition, or may report a refusal only once: do not use it
            # again.
            keep = not (late or self._closed)
            return times
        finally:
            if connection is not None and not keep:
                self._connections.discard(connection)
                # The next Consumer must look up the leaders again.
                self._topics.clear()
            self._lock.release()

    def _find_leaders(
        self,
        connection: Connection,
        positions: Offsets,
        isolation_level: IsolationLevel,
        deadline: Deadline,
    ) -> None:
        """Look up the leaders of new topics: an open Consumer does it only once a second."""
        new = {tp.topic: tp for tp in positions if (isolation_level, tp.topic) not in self._topics}
        if new:
            # An error of one topic is reported when the topic is fetched.
            with suppress(CallError):
                read_offsets(connection, list(new.values()), OFFSET_END, deadline.seconds_left)
            self._topics |= {(isolation_level, topic) for topic in new}


def _fetch_all(
    connection: Connection, positions: Offsets, deadline: Deadline
) -> tuple[dict[TopicPartition, int | None], list[TopicPartition]]:
    """Return the times, and the partitions that did not answer before the deadline."""
    times: dict[TopicPartition, int | None] = {}
    todo = list(positions)
    while todo and deadline.seconds_left > 0:
        chunk, todo = todo[:_CHUNK], todo[_CHUNK:]
        chunks = 1 + -(-len(todo) // _CHUNK)
        share = Deadline(min(deadline.seconds_left, max(_LEAST, deadline.seconds_left / chunks)))
        fetched = _fetch(connection, {tp: positions[tp] for tp in chunk}, share)
        times.update(fetched.times)
        for tp, reason in fetched.unreadable.items():
            log.debug("No time for %s at %d: %s", tp, positions[tp], reason)
        # At the end of the list: the others must not wait for partitions without a leader.
        todo += [tp for tp in chunk if tp not in fetched.times and tp not in fetched.unreadable]
    if todo:
        log.debug("No time for %s before the deadline; %s", summarize(todo), connection.background_errors)
    return times, todo


def _fetch(connection: Connection, positions: Offsets, deadline: Deadline) -> _Fetched:
    fetched = _Fetched({}, {})
    wanted = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]
    connection.ask(lambda consumer: consumer.assign(wanted))
    left = set(positions)
    while left and deadline.seconds_left > 0:
        first = connection.consumer.poll(deadline.seconds_left)
        # With a timeout, consume() would wait until it has that many messages.
        messages = [] if first is None else [first, *connection.consumer.consume(_AT_ONCE, 0)]
        for message in messages:
            _take(connection, message, left, fetched)
        if connection.background_errors.fatal is not None:
            raise CallError(connection.background_errors.fatal)
        done = [ClientPartition(*tp) for tp in positions if tp not in left]
        positions = {tp: offset for tp, offset in positions.items() if tp in left}
        if done and left:
            # Otherwise the rest of their logs would be fetched too.
            connection.ask(methodcaller("incremental_unassign", done))
    return fetched


def _take(connection: Connection, message: Message, left: set[TopicPartition], fetched: _Fetched) -> None:
    error = message.error()
    tp = TopicPartition(message.topic(), message.partition())
    if error is None:
        kind, time = message.timestamp()
        if tp not in left:
            return
        if kind == TIMESTAMP_NOT_AVAILABLE or time < 0:
            fetched.unreadable[tp] = "its record has no time"
        else:
            fetched.times[tp] = time
    else:
        failure = Failure.from_error(error)
        if tp not in left or failure.code in FINAL:
            if failure.code != _OF_THE_GROUP:
                connection.background_errors.add_error(error)
            return
        if failure.code in RETRIABLE | UNKNOWN_PARTITION:
            # The client retries these errors.
            return
        if failure.code == "_PARTITION_EOF":
            fetched.times[tp] = None
        else:
            fetched.unreadable[tp] = connection.scrub(str(failure))
    left.remove(tp)
