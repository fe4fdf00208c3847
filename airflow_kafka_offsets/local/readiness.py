"""
Waits until a broker really works: a record arrives, and a commit is taken.

A broker listens some time before it can do either, and a client that asked too early may stay confused
for long: every attempt has a client of its own.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError, SetupError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPT = 5.0
"""Seconds of one attempt. On a fresh broker the first commit may never be answered, a second client's is."""

_GROUP = "airflow-kafka-offsets-ready"


def wait_until_ready(bootstrap_servers: str, timeout: float, alive: Callable[[], bool]) -> bool:
    """
    Wait until a record can be produced and an offset committed.

    :return: ``False`` if the process is not alive any more.
    :raises BrokerUnavailableError: if the time is over; its cause is the last attempt's error.
    """
    deadline = Deadline(timeout)
    last: Exception | None = None
    while deadline.left > 0:
        if not alive():
            return False
        # librdkafka would wait longer and longer between its attempts to connect.
        if not _listens(bootstrap_servers):
            time.sleep(0.05)
            continue
        try:
            round_trip(bootstrap_servers, Deadline(min(_ATTEMPT, deadline.left)))
        except (KafkaException, BrokerError, TimeoutError) as error:
            last = error
        else:
            return True
    raise BrokerUnavailableError(
        f"a record and a commit were not taken by {bootstrap_servers} within {timeout:.0f} s "
        f"({'it does not listen' if last is None else last})"
    ) from last


def round_trip(bootstrap_servers: str, deadline: Deadline) -> None:
    """Produce a record, commit its offset, and remove topic and group again."""
    config: dict[str, str | int] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    topic = f"{_GROUP}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient(config)
    created = admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    created[topic].result(deadline.left)
    try:
        _produce(config, topic, deadline)
        with OffsetsClient(config, timeout=max(0.1, deadline.left)) as client:
            client.commit(_GROUP, {TopicPartition(topic, 0): 1})
        # Users see it in their lists. If it stays, Kafka drops it some minutes after its topic.
        with contextlib.suppress(BrokerError, SetupError), OffsetsClient(config, timeout=_ATTEMPT) as client:
            client.delete_groups([_GROUP])
    finally:
        with contextlib.suppress(KafkaException):
            admin.delete_topics([topic])[topic].result(_ATTEMPT)


def _listens(bootstrap_servers: str) -> bool:
    host, port = bootstrap_servers.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _produce(config: dict[str, str | int], topic: str, deadline: Deadline) -> None:
    outcome: list[KafkaError | None] = []
    producer = Producer({**config, "message.timeout.ms": max(1, int(deadline.left * 1000))})
    producer.produce(topic, b"ready?", partition=0, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(deadline.left)
    if not outcome:
        raise BrokerUnavailableError("a record was not acknowledged in time")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])
