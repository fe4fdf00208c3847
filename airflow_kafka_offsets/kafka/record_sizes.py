"""Sizes of a sample of records, fetched from the logs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from operator import methodcaller

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.failures import FINAL, CallError, Deadline, Failure
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition, summarize

RECORDS = 100
"""Most records to read of a partition."""

_FETCHES = {
    "enable.partition.eof": True,
    # A larger batch of records is still fetched, one in each response.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_AT_ONCE = 500
_CLOSE = 1.0


class RecordSizes:
    """
    Reads the sizes of records, each time with a new Consumer. The Consumer joins no group and commits
    nothing.

    A kept Consumer would look for the leaders of partitions only once a second, which takes longer than the
    rest of the call. Calls of several threads wait for each other, but not for other calls of a client.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connections = Connections({**session.config, **_FETCHES})
        self._lock = threading.Lock()

    def close(self) -> None:
        """Wait at most a second until the Consumers are closed."""
        with self._lock:
            self._connections.close(_CLOSE)

    def sample(self, offsets: Mapping[TopicPartition, int], within: float) -> dict[TopicPartition, list[int]]:
        """
        Return the bytes of key, value and headers for up to 100 records at or after each offset.

        The client cannot ask the broker for the sizes of logs. Partitions that did not respond in time, or
        have no record at or after the offset, are omitted. The user needs Read on the topics.

        :param offsets: offsets to read from, inside the logs.
        :param within: seconds for the whole call.
        :raises BrokerAuthenticationError: if the broker denies the call.
        """
        sizes: dict[TopicPartition, list[int]] = {tp: [] for tp in offsets}
        what = f"reading the sizes of records in {summarize(offsets)}"
        with self._session.begin_call(what, within) as call:
            if not self._lock.acquire(timeout=call.seconds_left):
                return {}
            connection = self._connections.get()
            try:
                _read(connection, offsets, sizes, call)
            except CallError as error:
                raise call.explain(error.failure, "Read") from None
            finally:
                self._connections.discard(connection)
                self._lock.release()
        return {tp: found for tp, found in sizes.items() if found}


def _read(
    connection: Connection,
    offsets: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, list[int]],
    deadline: Deadline,
) -> None:
    wanted = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
    connection.ask(methodcaller("assign", wanted))
    left = set(offsets)
    while left and deadline.seconds_left > 0:
        first = connection.consumer.poll(deadline.seconds_left)
        messages = [] if first is None else [first, *connection.consumer.consume(_AT_ONCE, 0)]
        done = set()
        for message in messages:
            tp = TopicPartition(message.topic(), message.partition())
            if tp not in left:
                continue
            if (error := message.error()) is None:
                sizes[tp].append(_size(message))
            elif Failure.from_error(error).code in FINAL:
                connection.background_errors.add_error(error)
            if error is not None or len(sizes[tp]) >= RECORDS:
                done.add(tp)
        if connection.background_errors.fatal is not None:
            raise CallError(connection.background_errors.fatal)
        left -= done
        if done and left:
            gone = [ClientPartition(*tp) for tp in done]
            connection.ask(methodcaller("incremental_unassign", gone))


def _size(message: Message) -> int:
    """Return the bytes of a record's key, value and headers, before compression."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers() or ())
    return len(message.key() or b"") + len(message.value() or b"") + headers
