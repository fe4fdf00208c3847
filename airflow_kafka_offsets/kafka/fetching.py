"""Fetches records with Consumers that stay open. They join no group and commit nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_END, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import (
    FINAL,
    RETRIABLE,
    UNKNOWN_PARTITION,
    CallError,
    Deadline,
    Failure,
)
from airflow_kafka_offsets.kafka.requests import read_offsets
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import IsolationLevel, Offsets, TopicPartition

_SETTINGS = {
    # Reports the end of a log, even if only transaction markers precede it.
    "enable.partition.eof": True,
    # All partitions share one queue: the next fetch starts soon after the queue has room again.
    "fetch.queue.backoff.ms": 5,
    # Only a response without records reports a log end, and the broker delays such a response for this long.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_AT_ONCE = 1_000
_POLL = 1.0
"""Seconds after which a waiting call looks for an error, such as a wrong password."""
_FIND = 1.0
"""Seconds to find leaders in advance; the fetch itself finds the other ones later."""
_CLOSE = 1.0
END_OF_LOG = "_PARTITION_EOF"
"""Code of the message at the end of a log; not an error."""
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Code that is ignored: fetching needs no group."""


class FetchConnections:
    """
    The Consumers for one kind of fetch, one for each isolation level.

    Calls of several threads wait for each other, but not for other calls of the client.

    :param settings: librdkafka's settings for the size of a response and of the queue.
    """

    def __init__(self, session: Session, settings: Mapping[str, Any]) -> None:
        self._connections = Connections({**session.config, **_SETTINGS, **settings})
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

    @contextmanager
    def use(
        self,
        partitions: Collection[TopicPartition],
        call: Call,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Connection | None]:
        """
        Lend the Consumer of an isolation level; ``None`` if other threads use it until the call's deadline.

        :raises BrokerError: for a :class:`CallError`; names the right to read.
        """
        if not self._lock.acquire(timeout=call.seconds_left):
            yield None
            return
        connection = None
        keep = False
        try:
            connection = self._connections.get(isolation_level)
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


def fetch(
    connection: Connection, positions: Offsets, left: set[TopicPartition], deadline: Deadline
) -> Iterator[tuple[TopicPartition, Message, Failure | None]]:
    """
    Fetch partitions from their positions on; yield records, and errors that the client does not retry.

    :param left: the partitions to fetch: the caller removes those that it has read far enough.
    :raises CallError: if the broker refuses, for example because a right is missing.
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
                if failure.code != _OF_THE_GROUP:
                    connection.background_errors.add_error(error)
            elif tp in left and (failure is None or failure.code not in RETRIABLE | UNKNOWN_PARTITION):
                yield tp, message, failure
        if connection.background_errors.fatal is not None:
            raise CallError(connection.background_errors.fatal)
        if (ended := assigned - left) and left:
            # Otherwise the Consumer would fetch the rest of their logs too.
            connection.ask(methodcaller("incremental_unassign", [ClientPartition(*tp) for tp in ended]))
            assigned -= ended
