"""Fetches records with Consumers that stay open. They join no group and commit nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_END, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import FINAL, TEMPORARY, CallError, Deadline, Failure
from airflow_kafka_offsets.kafka.requests import read_cluster_id, read_offsets
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    OffsetRange,
    Offsets,
    TopicPartition,
    refuse_invalid_partitions,
    summarize,
)

log = logging.getLogger(__name__)

SAMPLES = {
    # One record of each partition, or a few. A larger batch is still fetched, one in each response.
    "fetch.message.max.bytes": 32 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    # All partitions share one queue: the next fetch waits until the queue is empty.
    "queued.min.messages": 1,
}
"""Settings to read few records of each partition."""
SCANS = {"fetch.message.max.bytes": 512 * 1024, "queued.max.messages.kbytes": 16 * 1024}
"""Settings to read all records of a range."""

_SETTINGS = {
    # Reports the end of a log, even if only transaction markers precede it.
    "enable.partition.eof": True,
    # All partitions share one queue: the next fetch starts soon after the queue has room again.
    "fetch.queue.backoff.ms": 5,
    # Only a response without records reports a log end, and the broker delays such a response for this long.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_PARTITIONS = 200
"""Number of partitions that are fetched together: a response has up to 32 or 512 KB for each."""
_LEAST = 0.5
"""Minimum seconds of these partitions, so that those without a leader do not take all the time."""
_AT_ONCE = 1_000
_POLL = 1.0
"""Seconds after which a waiting call looks for an error, such as a wrong password."""
_FIND = 1.0
"""Seconds to find leaders in advance; the fetch itself finds the other ones later."""
_CLOSE = 1.0

Take = Callable[[TopicPartition, Message], object]
"""Takes a message; returns whether its partition was read far enough. A partition's messages are in order."""


class EnoughError(Exception):
    """Raised by a :data:`Take` to end the whole read; never raised outside of this package."""


class FetchConnections:
    """
    The Consumers for one kind of read, one for each isolation level.

    Calls of several threads wait for each other, but not for other calls of the client.

    :param settings: librdkafka's settings for the size of a response and of the queue.
    """

    def __init__(self, session: Session, settings: Mapping[str, Any]) -> None:
        self._session = session
        self._connections = Connections({**session.config, **_SETTINGS, **settings})
        session.kept.append(self._connections)
        self._topics: set[tuple[IsolationLevel, str]] = set()
        """The isolation levels and topics whose leaders the Consumers know."""
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close the Consumers; a running call closes its own when it ends."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._connections.close(_CLOSE)
            finally:
                self._lock.release()

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        take: Take,
        call: Call,
        isolation_level: IsolationLevel,
    ) -> tuple[Offsets, set[TopicPartition]]:
        """
        Give the messages of ranges to ``take`` until the call's deadline.

        :return: how far each partition was read, and the partitions without another record that this
            isolation level can read.
        """
        reached = {tp: each.start for tp, each in ranges.items()}
        ended: set[TopicPartition] = set()
        todo = [tp for tp, each in sorted(ranges.items()) if each.size > 0]
        refuse_invalid_partitions(todo)
        if not todo:
            return reached, ended
        with self._use(todo, call, isolation_level) as connection, suppress(EnoughError):
            while connection is not None and todo and call.seconds_left > 0:
                some, todo = todo[:_PARTITIONS], todo[_PARTITIONS:]
                parts = 1 + -(-len(todo) // _PARTITIONS)
                share = Deadline(min(call.seconds_left, max(_LEAST, call.seconds_left / parts)))
                left = set(some)
                for tp, message, failure in _fetch(connection, {tp: reached[tp] for tp in some}, left, share):
                    end, offset = ranges[tp].end, message.offset()
                    if failure is None:
                        reached[tp] = min(offset + 1, end)
                        if offset >= end or take(tp, message) or reached[tp] == end:
                            left.remove(tp)
                        continue
                    left.remove(tp)
                    if failure.code == "_PARTITION_EOF":
                        reached[tp] = max(reached[tp], min(offset, end))
                        ended.add(tp)
                    else:
                        log.info("Read no further: %s", connection.scrub(str(failure)))
                # At the end of the list: the others must not wait for partitions without a leader.
                todo += [tp for tp in some if tp in left]
            if todo:
                log.debug("Not read to the end before the deadline: %s", summarize(todo))
        return reached, ended

    @contextmanager
    def _use(
        self, partitions: Collection[TopicPartition], call: Call, isolation_level: IsolationLevel
    ) -> Iterator[Connection | None]:
        """Lend the Consumer of an isolation level; ``None`` if there is no time left when it can be used."""
        if not self._lock.acquire(timeout=call.seconds_left):
            yield None
            return
        connection = None
        keep = False
        try:
            opened = self._connections.get(isolation_level)
            if call.seconds_left <= 0 and not self._closed:
                # An oauth_cb took all of the time. The next call uses the Consumer: one that is slow to open
                # would be too late again.
                yield None
                return
            connection = opened
            if not connection.cluster_id and not _answers(connection, call):
                yield None
                return
            self._session.check_cluster()
            self._find_leaders(connection, partitions, isolation_level, call)
            yield connection
            connection.ask(methodcaller("unassign"))
            # A late Consumer may not know a partition, or may report a refusal only once: do not use it
            # again.
            keep = call.seconds_left > 0 and not self._closed
        except CallError as error:
            raise call.explain(error.failure, "Read") from None
        finally:
            if connection is not None and not keep:
                self._connections.discard(connection)
                # The next Consumer must look up the leaders again.
                self._topics.clear()
            self._lock.release()

    def _find_leaders(
        self,
        connection: Connection,
        partitions: Collection[TopicPartition],
        isolation_level: IsolationLevel,
        deadline: Deadline,
    ) -> None:
        """Look up the leaders of new topics: an open Consumer does it only once a second."""
        new = {tp.topic: tp for tp in partitions if (isolation_level, tp.topic) not in self._topics}
        if new:
            # An error of one topic is reported when the topic is fetched.
            with suppress(CallError):
                read_offsets(connection, list(new.values()), OFFSET_END, min(_FIND, deadline.seconds_left))
            self._topics |= {(isolation_level, topic) for topic in new}


def _answers(connection: Connection, call: Call) -> bool:
    """Ask which cluster a connection leads to; return whether there was an answer in time."""
    try:
        retry_until(call, partial(read_cluster_id, connection), lambda: connection.background_errors)
    except CallError as error:
        if connection.background_errors.fatal is not None or error.failure.code in FINAL:
            raise
        return False
    return True


def _fetch(
    connection: Connection, positions: Offsets, left: set[TopicPartition], deadline: Deadline
) -> Iterator[tuple[TopicPartition, Message, Failure | None]]:
    """
    Fetch partitions from their positions on; yield records, and errors that the client does not retry.

    :param left: the partitions to fetch: the caller removes those that it has read far enough.
    """
    start = [ClientPartition(*tp, offset) for tp, offset in positions.items()]
    connection.ask(methodcaller("assign", start))
    assigned = set(positions)
    while left and deadline.seconds_left > 0:
        first = connection.consumer.poll(min(_POLL, deadline.seconds_left))
        # With a timeout, consume() would wait until it has that many messages.
        messages = [] if first is None else [first, *connection.consumer.consume(_AT_ONCE, 0)]
        for message in messages:
            tp = TopicPartition(message.topic(), message.partition())
            error = message.error()
            failure = None if error is None else Failure.from_error(error)
            if failure is not None and failure.code in FINAL:
                connection.add_error(error)
            elif tp in left and (failure is None or failure.code not in TEMPORARY):
                yield tp, message, failure
        if connection.background_errors.fatal is not None:
            raise CallError(connection.background_errors.fatal)
        if (ended := assigned - left) and left:
            # Otherwise the Consumer would fetch the rest of their logs too.
            connection.ask(methodcaller("incremental_unassign", [ClientPartition(*tp) for tp in ended]))
            assigned -= ended
