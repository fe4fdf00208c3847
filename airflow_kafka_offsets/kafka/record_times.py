"""Which time does a log have at an offset?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.kafka.connection import OWN_GROUP, Connection, Connections
from airflow_kafka_offsets.kafka.failures import (
    FINAL,
    RETRIABLE,
    UNKNOWN_PARTITION,
    Deadline,
    Failed,
    Failure,
)
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, Offsets, TopicPartition, summarize

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

_FETCHES = {
    # Tells at once that nothing follows, also behind the markers of transactions.
    "enable.partition.eof": True,
    # One record of each partition is wanted. A larger batch still comes, one in each answer.
    "fetch.message.max.bytes": 32 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    # The queue is one for all partitions: no more is fetched until what came was looked at, ...
    "queued.min.messages": 1,
    # ... and then soon.
    "fetch.queue.backoff.ms": 5,
    # A log end is told only by an answer without records, which the broker holds back for this long.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
}
_CHUNK = 200
"""Partitions asked for at a time: an answer has up to 32 KB for each of them."""
_LEAST = 0.5
"""Seconds that a chunk has at least, so that partitions without a leader do not take the time of all others."""
_AT_ONCE = 1000
_CLOSE = 1.0
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Of no matter: a fetch needs no group."""


class _Answers(NamedTuple):
    times: dict[TopicPartition, int | None]
    unreadable: dict[TopicPartition, str]


def positions_in_logs(
    offsets: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogRange]
) -> Offsets:
    """Return where to look for a record, for the partitions that may have one at or after their offset."""
    inside = {tp: max(offset, logs[tp].start) for tp, offset in offsets.items()}
    return {tp: offset for tp, offset in inside.items() if offset < logs[tp].end}


def fetch_times(
    config: Mapping[str, Any], positions: Offsets, isolation_level: IsolationLevel, deadline: Deadline
) -> dict[TopicPartition, int | None]:
    """
    Return the time of the first record at or after each position.

    A Consumer of its own reads them, and is closed at the end; it joins no group and commits nothing.

    :param config: from :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    :param positions: each inside its log.
    :param isolation_level: whether records of transactions that are open or were aborted count.
    :return: ``None`` where no record follows. Without the partitions that did not answer before the deadline,
        whose log start has just moved beyond the position, or whose record has no time or cannot be read.
    :raises Failed: if the broker refuses, such as for want of a permission.
    """
    times: dict[TopicPartition, int | None] = {}
    todo = list(positions)
    if not todo:
        return times
    connections = Connections({**config, **_FETCHES})
    try:
        connection = connections.get(OWN_GROUP, isolation_level)
        while todo and deadline.left > 0:
            chunk, todo = todo[:_CHUNK], todo[_CHUNK:]
            chunks = 1 + -(-len(todo) // _CHUNK)
            share = Deadline(min(deadline.left, max(_LEAST, deadline.left / chunks)))
            answers = _fetch(connection, {tp: positions[tp] for tp in chunk}, share)
            times.update(answers.times)
            for tp, reason in answers.unreadable.items():
                log.debug("No time for %s at %d: %s", tp, positions[tp], reason)
            todo += [tp for tp in chunk if tp not in answers.times and tp not in answers.unreadable]
    finally:
        connections.close(_CLOSE)
    if todo:
        log.debug("No time for %s before the deadline; %s", summarize(todo), connection.causes)
    return times


def _fetch(connection: Connection, positions: Offsets, deadline: Deadline) -> _Answers:
    answers = _Answers({}, {})
    wanted = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]
    connection.ask(lambda consumer: consumer.assign(wanted))
    left = set(positions)
    while left and deadline.left > 0:
        for message in _messages(connection.consumer, deadline.left):
            _take(connection, message, left, answers)
        if connection.causes.final is not None:
            raise Failed(connection.causes.final)
        done = [ClientPartition(*tp) for tp in positions if tp not in left]
        positions = {tp: offset for tp, offset in positions.items() if tp in left}
        if done and left:
            _unassign(connection, done)
    return answers


def _messages(consumer: Consumer, timeout: float) -> list[Message]:
    first = consumer.poll(timeout)
    # Asked for several with a timeout, it would wait until there are as many.
    return [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]


def _unassign(connection: Connection, partitions: list[ClientPartition]) -> None:
    # Or the rest of their logs would be fetched as well.
    connection.ask(lambda consumer: consumer.incremental_unassign(partitions))


def _take(connection: Connection, message: Message, left: set[TopicPartition], answers: _Answers) -> None:
    error = message.error()
    tp = TopicPartition(message.topic(), message.partition())
    if error is None:
        kind, time = message.timestamp()
        if tp not in left:
            return
        if kind == TIMESTAMP_NOT_AVAILABLE or time < 0:
            answers.unreadable[tp] = "its record has no time"
        else:
            answers.times[tp] = time
    else:
        failure = Failure.of(error)
        if tp not in left or failure.code in FINAL:
            if failure.code != _OF_THE_GROUP:
                connection.causes.note(error)
            return
        if failure.code in RETRIABLE | UNKNOWN_PARTITION:
            # The client goes on with it by itself.
            return
        if failure.code == "_PARTITION_EOF":
            answers.times[tp] = None
        else:
            answers.unreadable[tp] = connection.scrub(str(failure))
    left.remove(tp)
