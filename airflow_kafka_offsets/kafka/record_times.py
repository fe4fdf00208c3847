"""Reads the times of records from the logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.kafka.fetching import END_OF_LOG, FetchConnections, fetch
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, Offsets, TopicPartition, summarize

log = logging.getLogger(__name__)

SETTINGS = {
    # One record of each partition is enough. A larger batch is still fetched, one in each response.
    "fetch.message.max.bytes": 32 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    # All partitions share one queue: the next fetch waits until the queue is empty.
    "queued.min.messages": 1,
}
_CHUNK = 200
"""Partitions in one request: a response contains up to 32 KB for each."""
_LEAST = 0.5
"""Minimum seconds of a chunk, so that partitions without a leader do not take all the time."""


def positions_in_logs(
    offsets: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, LogRange]
) -> Offsets:
    """Return the read position of each partition that may have a record at or after its offset."""
    inside = {tp: max(offset, logs[tp].start) for tp, offset in offsets.items()}
    return {tp: offset for tp, offset in inside.items() if offset < logs[tp].end}


def read_record_times(
    connections: FetchConnections, positions: Offsets, call: Call, isolation_level: IsolationLevel
) -> dict[TopicPartition, int | None]:
    """
    Return the time of the first record at or after each position; positions must be inside the log.

    :return: partition -> time; ``None`` if no record follows. Partitions are left out if they did not answer
        before the deadline, just lost the position to retention, or have a record that cannot be read or has
        no time.
    """
    times: dict[TopicPartition, int | None] = {}
    with connections.use(positions, call, isolation_level) as connection:
        todo = list(positions)
        while connection is not None and todo and call.seconds_left > 0:
            chunk, todo = todo[:_CHUNK], todo[_CHUNK:]
            chunks = 1 + -(-len(todo) // _CHUNK)
            share = Deadline(min(call.seconds_left, max(_LEAST, call.seconds_left / chunks)))
            left = set(chunk)
            for tp, message, failure in fetch(connection, {tp: positions[tp] for tp in chunk}, left, share):
                left.remove(tp)
                if failure is not None and failure.code == END_OF_LOG:
                    times[tp] = None
                elif failure is not None:
                    log.debug("No time for %s: %s", tp, connection.scrub(str(failure)))
                else:
                    kind, time = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE and time >= 0:
                        times[tp] = time
            # At the end of the list: the others must not wait for partitions without a leader.
            todo += [tp for tp in chunk if tp in left]
        if todo:
            log.debug("No time for %s before the deadline", summarize(todo))
    return times
