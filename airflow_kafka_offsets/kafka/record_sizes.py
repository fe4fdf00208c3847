"""Sizes of a sample of records, fetched from the logs."""

from __future__ import annotations

from confluent_kafka import Message

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.fetching import FetchConnections, fetch
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition

RECORDS = 100
"""Most records to read of a partition."""

SETTINGS = {
    # A larger batch of records is still fetched, one in each response.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 4 * 1024,
    "queued.min.messages": 1,
}


def read_record_sizes(
    connections: FetchConnections, offsets: Offsets, call: Call
) -> dict[TopicPartition, list[int]]:
    """Return the bytes of up to :data:`RECORDS` records at or after each offset."""
    sizes: dict[TopicPartition, list[int]] = {}
    with connections.use(offsets, call) as connection:
        if connection is None:
            return {}
        left = set(offsets)
        for tp, message, failure in fetch(connection, offsets, left, call):
            if failure is None:
                sizes.setdefault(tp, []).append(_size(message))
            if failure is not None or len(sizes[tp]) >= RECORDS:
                left.remove(tp)
    return sizes


def _size(message: Message) -> int:
    """Return the bytes of a record's key, value and headers, before compression."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers() or ())
    return len(message.key() or b"") + len(message.value() or b"") + headers
