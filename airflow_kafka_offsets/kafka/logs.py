"""Reads the start and end offsets of partitions' logs, and their offsets at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from airflow_kafka_offsets.errors import UnknownTopicPartitionError
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import NOT_READY, TEMPORARY, UNKNOWN_PARTITION, CallError, Failure
from airflow_kafka_offsets.kafka.requests import (
    leaderless_failure,
    missing_partitions,
    read_cluster_id,
    read_offsets,
)
from airflow_kafka_offsets.kafka.session import Session, ask_each
from airflow_kafka_offsets.model.offsets import (
    IsolationLevel,
    LogRange,
    Offsets,
    TopicPartition,
    refuse_invalid_partitions,
    summarize,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import TopicMetadata

# Minimum seconds of a request, so that the last attempt before the deadline may still get a response.
_LEAST = 0.1


def read_logs(
    session: Session, call: Call, wanted: Sequence[TopicPartition], isolation_level: IsolationLevel
) -> dict[TopicPartition, LogRange]:
    """Return the start and end offsets of logs; raise :class:`UnknownTopicPartitionError`."""
    # Two requests: in one request, a partition that is named twice gets the last answer for both.
    starts, ends = offsets_at_timestamps(
        session, call, wanted, OFFSET_BEGINNING, OFFSET_END, isolation_level=isolation_level
    )
    # Retention may have moved the start of an emptied log past the end that was read before.
    return {tp: LogRange(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}


def offsets_at_timestamps(
    session: Session,
    call: Call,
    wanted: Sequence[TopicPartition],
    *timestamps: int,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> list[Offsets]:
    """
    Return, for each timestamp, the first offset at or after it (-1 if no record is that new).

    The timestamps ``OFFSET_BEGINNING`` and ``OFFSET_END`` mean the log start and the log end.
    """
    refuse_invalid_partitions(wanted)
    ordered = session.by_leader(wanted)
    found: dict[int, Offsets] = {timestamp: {} for timestamp in timestamps}
    absent: Counter[TopicPartition] = Counter()

    def tasks() -> list[tuple[int, Sequence[TopicPartition]]]:
        return [
            (timestamp, chunk)
            for timestamp, known in found.items()
            for chunk in session.chunks([tp for tp in ordered if tp not in known] if known else ordered)
        ]

    def question(timeout: float) -> list[Offsets]:
        failures: dict[TopicPartition, Failure] = {}

        def within() -> float:
            return max(_LEAST, min(timeout, call.seconds_left))

        def ask(
            connection: Connection, task: tuple[int, Sequence[TopicPartition]]
        ) -> tuple[Offsets, dict[TopicPartition, Failure]]:
            timestamp, chunk = task
            if connection.fastest == math.inf:
                # A client that looks for leaders before it is connected may wait for 0.7 s: 2 to 8 of 100
                # clients did.
                read_cluster_id(connection, within())
            return read_offsets(connection, chunk, timestamp, within())

        for (timestamp, _), (got, failed) in ask_each(connections, tasks(), ask):
            found[timestamp].update(got)
            failures.update(failed)
        if failures:
            raise _failure(session, call, connections, failures, absent, within)
        return list(found.values())

    if not wanted:
        return list(found.values())
    connections = session.connections.get_several(len(tasks()), isolation_level)
    return session.ask_over(connections, call, question)


def _failure(
    session: Session,
    call: Call,
    connections: Sequence[Connection],
    failures: Mapping[TopicPartition, Failure],
    absent: Counter[TopicPartition],
    within: Callable[[], float],
) -> Exception:
    """Return the error of an attempt; count in ``absent`` the partitions that the broker does not list."""
    unknown = [tp for tp, failure in failures.items() if failure.code in UNKNOWN_PARTITION]
    missing: list[TopicPartition] = []
    described: dict[str, TopicMetadata] = {}
    for connection in connections if unknown else ():
        # Each connection has its own metadata, which this updates.
        missing = missing_partitions(
            connection, unknown, within(), lambda found: described.update(found.topics)
        )
    absent.update(missing)
    # Not at the first time: for a moment a broker may not know a new topic.
    if any(absent[tp] > 1 for tp in missing):
        return UnknownTopicPartitionError(
            f"{call.what}: {summarize(missing)} is not on {session.servers}: correct topic and partition, "
            "or the connection",
            missing=missing,
        )
    # A permanent failure first: with it, asking again for the other partitions is useless.
    tp, failure = min(failures.items(), key=lambda each: each[1].code in TEMPORARY)
    if failure.code not in UNKNOWN_PARTITION or tp in missing:
        return CallError(failure)
    # The client reports a partition without a leader as unknown, and a leader that has just started does not
    # know its partitions yet. The list of topics contains both.
    hidden = leaderless_failure(described.values(), set(unknown))
    return CallError(hidden or Failure(NOT_READY, f"the leader of {tp} does not know it yet"))
