"""Reads the records of ranges of offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.fetching import FetchConnections
from airflow_kafka_offsets.model.offsets import IsolationLevel, OffsetRange, Offsets, TopicPartition


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
    """In milliseconds since 1970; -1 if the record has no timestamp."""
    key: bytes | None
    value: bytes | None
    appended: bool = False
    """Whether the broker has set the timestamp (``LogAppendTime``)."""


Take = Callable[[TopicPartition, Record], None]
"""Takes the records of ranges; the records of a partition come in order."""


def read_records(
    connections: FetchConnections,
    ranges: Mapping[TopicPartition, OffsetRange],
    take: Take,
    call: Call,
    isolation_level: IsolationLevel,
) -> Offsets:
    """Give the records of ranges to ``take``; return how far each partition was read."""

    def take_message(tp: TopicPartition, message: Message) -> None:
        kind, timestamp = message.timestamp()
        time = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
        appended = kind == TIMESTAMP_LOG_APPEND_TIME
        take(tp, Record(message.offset(), time, message.key(), message.value(), appended))

    reached, ended = connections.read(ranges, take_message, call, isolation_level)
    return reached | {tp: ranges[tp].end for tp in ended}
