"""Reads the records of ranges of offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import NamedTuple

from confluent_kafka import OFFSET_END, TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import FINAL, CallError, Failure
from airflow_kafka_offsets.kafka.requests import read_offsets
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    OffsetRange,
    Offsets,
    TopicPartition,
    check_partitions,
    summarize,
)

_FETCHES = {
    # Reports the end of a log even if only transaction markers follow.
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 512 * 1024,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.queue.backoff.ms": 5,
    # Only a response without records reports a log end, and the broker delays such a response for this long.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_WITHIN = 30.0
_AT_ONCE = 1_000
_CHUNK = 200
"""Partitions that are fetched together."""
_CLOSE = 1.0
_NOT_THERE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
"""Error codes: the offset to begin at is not in the log."""
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Error code that is ignored: a fetch needs no group."""


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    """In milliseconds since 1970; -1 if the record has no timestamp."""
    key: bytes | None
    value: bytes | None


Take = Callable[[TopicPartition, Record], None]
"""Takes the records of ranges; the records of a partition come in order."""


class Records:
    """
    Reads records with Consumers that are kept open. They join no group and commit nothing.

    Calls of several threads wait for each other.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connections = Connections({**session.config, **_FETCHES})
        self._topics: dict[IsolationLevel, set[str]] = {}
        """Isolation level -> topics whose leaders its Consumer knows."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the Consumers."""
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._connections.close(_CLOSE)
            finally:
                self._lock.release()

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Take,
        isolation_level: IsolationLevel,
        within: float | None,
    ) -> Offsets:
        """Read the records of ranges, see :meth:`OffsetsClient.read_records`."""
        wanted = {tp: each for tp, each in sorted(ranges.items()) if each.size > 0}
        reached = {tp: each.start for tp, each in ranges.items()}
        check_partitions(wanted)
        what = f"reading records of {summarize(wanted)}"
        with self._session.begin_call(
            what, min(_WITHIN, self._session.timeout) if within is None else within
        ) as call:
            if not wanted or not self._lock.acquire(timeout=call.seconds_left):
                return reached
            connection = None
            keep = False
            try:
                connection = self._connections.get(isolation_level)
                todo = list(wanted)
                self._find_leaders(connection, todo, isolation_level, call)
                for first in range(0, len(todo), _CHUNK):
                    chunk = {tp: wanted[tp] for tp in todo[first : first + _CHUNK]}
                    _Fetch(connection, chunk, take, reached).run(call)
                connection.ask(methodcaller("unassign"))
                keep = True
            except CallError as error:
                raise call.explain(error.failure, "Read") from None
            finally:
                if connection is not None and not keep:
                    self._connections.discard(connection)
                    self._topics.pop(isolation_level, None)
                self._lock.release()
            return reached

    def _find_leaders(
        self,
        connection: Connection,
        partitions: Sequence[TopicPartition],
        isolation_level: IsolationLevel,
        call: Call,
    ) -> None:
        """Find the leaders of new topics now; a kept Consumer looks for leaders only once a second."""
        topics = {tp.topic: tp for tp in partitions}
        known = self._topics.setdefault(isolation_level, set())
        new = [tp for topic, tp in topics.items() if topic not in known]
        if known and new:
            # The fetch reports the error of a partition.
            with suppress(CallError):
                read_offsets(connection, new, OFFSET_END, call.seconds_left)
        known.update(topics)


class _Fetch:
    """Fetches partitions until each was read to the end of its range."""

    def __init__(
        self,
        connection: Connection,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Take,
        reached: Offsets,
    ) -> None:
        self._connection = connection
        self._ranges = ranges
        self._take = take
        self._reached = reached
        self._left = set(ranges)

    def run(self, call: Call) -> None:
        """Fetch until the ends of the ranges, or until the call's time is up."""
        start = [ClientPartition(*tp, each.start) for tp, each in self._ranges.items()]
        self._connection.ask(lambda consumer: consumer.assign(start))
        while self._left and call.seconds_left > 0:
            first = self._connection.consumer.poll(call.seconds_left)
            # With a timeout, consume() would wait until it has this many messages.
            messages = [] if first is None else [first, *self._connection.consumer.consume(_AT_ONCE, 0)]
            before = set(self._left)
            for message in messages:
                self._on_message(message)
            if self._connection.background_errors.fatal is not None:
                raise CallError(self._connection.background_errors.fatal)
            done = [ClientPartition(*tp) for tp in before - self._left]
            if done and self._left:
                # Otherwise the Consumer would fetch the rest of their logs too.
                self._connection.ask(methodcaller("incremental_unassign", done))

    def _on_message(self, message: Message) -> None:
        tp = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is not None:
            failure = Failure.from_error(error)
            if failure.code in FINAL:
                if failure.code != _OF_THE_GROUP:
                    self._connection.background_errors.add_error(error)
            elif failure.code == "_PARTITION_EOF" and tp in self._left:
                # No record follows that this isolation level can read.
                self._reached[tp] = self._ranges[tp].end
                self._left.remove(tp)
            elif failure.code in _NOT_THERE and tp in self._left:
                self._left.remove(tp)
            return
        if tp not in self._left:
            return
        offset, end = message.offset(), self._ranges[tp].end
        if offset < end:
            kind, timestamp = message.timestamp()
            time = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
            self._take(tp, Record(offset, time, message.key(), message.value()))
        self._reached[tp] = min(offset + 1, end)
        if offset + 1 >= end:
            self._left.remove(tp)
