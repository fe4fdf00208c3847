"""What the logs of partitions hold, and their offsets at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from airflow_kafka_offsets.errors import UnknownTopicPartitionError
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import RETRIABLE, UNKNOWN_PARTITION, Failed, Failure
from airflow_kafka_offsets.kafka.requests import missing_partitions, read_offsets, without_leader
from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    LogRange,
    Offsets,
    TopicPartition,
    check_partitions,
    summarize,
)

_ABSENT_TWICE = 2
"""A broker that has just learnt of a topic may not know it for a moment."""


def read_logs(
    session: Session, call: Call, wanted: Sequence[TopicPartition], isolation_level: IsolationLevel
) -> dict[TopicPartition, LogRange]:
    """Return what the logs hold; raises :class:`UnknownTopicPartitionError`."""
    if not wanted:
        return {}
    connection = session.connections.get(isolation_level=isolation_level)
    # A broker answers the requests of one connection one by one. The log start is the same over any.
    other = session.connections.other_than(connection) or connection

    def read(timestamp: int, over: Connection) -> Offsets:
        return offsets_at(session, call, wanted, timestamp, over)

    # Two requests: one that names a partition twice gets the last answer for both.
    with ThreadPoolExecutor(1) as meanwhile:
        future = meanwhile.submit(read, OFFSET_BEGINNING, other)
        ends = read(OFFSET_END, connection)
        starts = future.result()
    # Retention may have moved the start of an emptied log past the end that was read for it.
    return {tp: LogRange(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}


def offsets_at(
    session: Session,
    call: Call,
    wanted: Sequence[TopicPartition],
    timestamp: int,
    connection: Connection | None = None,
) -> Offsets:
    """Return the first offset at or after a time (-1: no record is that new), or the log start or end."""
    check_partitions(wanted)
    found: Offsets = {}
    absent: dict[TopicPartition, int] = {}

    def question(connection: Connection, timeout: float) -> Offsets:
        failures: dict[TopicPartition, Failure] = {}
        ask = partial(read_offsets, connection, timestamp=timestamp, timeout=timeout)
        for got, failed in session.in_chunks([tp for tp in wanted if tp not in found], ask):
            found.update(got)
            failures.update(failed)
        unknown = [tp for tp, failure in failures.items() if failure.code in UNKNOWN_PARTITION]
        missing = missing_partitions(connection, unknown, timeout)
        for tp in missing:
            absent[tp] = absent.get(tp, 0) + 1
        if missing and max(absent[tp] for tp in missing) >= _ABSENT_TWICE:
            raise UnknownTopicPartitionError(
                f"{call.what}: {summarize(missing)} is not on {session.servers}: correct topic and "
                "partition, or the connection",
                missing=missing,
            )
        # A failure that does not pass first: with it, asking again for the others is of no use.
        for failure in sorted(failures.values(), key=lambda each: each.code in RETRIABLE | UNKNOWN_PARTITION):
            # The client reports a partition without a leader as one that it does not know.
            hidden = failure.code in UNKNOWN_PARTITION and without_leader(connection, unknown, timeout)
            raise Failed(hidden or failure)
        return found

    return session.ask(call, question, connection) if wanted else {}
