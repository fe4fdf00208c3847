"""
Does a broker really work: does a record arrive, and is a commit taken?

A broker listens some time before it can do either, and a client that asked too early may stay confused
for long: every attempt has a client of its own.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_offsets.errors import BrokerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPT = 5.0
"""Seconds of one attempt. On a fresh broker the first commit may never be answered, a second client's is."""

_GROUP = "airflow-kafka-offsets-ready"

_DELETE_GROUP = """
import sys
from confluent_kafka.admin import AdminClient
client = AdminClient({"bootstrap.servers": sys.argv[1], "log_level": 0})
client.delete_consumer_groups([sys.argv[2]], request_timeout=5)[sys.argv[2]].result(6)
"""


def wait_until_ready(bootstrap_servers: str, timeout: float, alive: Callable[[], bool]) -> bool:
    """
    Wait until a record can be produced and an offset committed.

    :param bootstrap_servers: ``host:port`` of a listener without authentication.
    :param timeout: seconds to wait at most.
    :param alive: whether the broker's process still runs.
    :return: ``False`` if the process ended.
    :raises BrokerUnavailableError: if the time is over; its cause is the last attempt's error.
    """
    deadline = time.monotonic() + timeout
    last: Exception | None = None
    while time.monotonic() < deadline:
        if not alive():
            return False
        # librdkafka would wait longer and longer between its attempts to connect.
        if not _listens(bootstrap_servers):
            time.sleep(0.05)
            continue
        try:
            round_trip(bootstrap_servers, min(_ATTEMPT, deadline - time.monotonic()))
        except (KafkaException, BrokerUnavailableError, TimeoutError) as error:
            last = error
        else:
            return True
    raise BrokerUnavailableError(
        f"a record and a commit were not taken by {bootstrap_servers} within {timeout:.0f} s "
        f"({'it does not listen' if last is None else last})"
    ) from last


def round_trip(bootstrap_servers: str, timeout: float) -> None:
    """
    Produce a record, commit its offset, and remove topic and group again.

    :param bootstrap_servers: ``host:port`` of a listener without authentication.
    :param timeout: seconds for each of the steps together.
    :raises BrokerUnavailableError: if the time is over.
    :raises confluent_kafka.KafkaException: if the broker refuses.
    """
    deadline = time.monotonic() + timeout
    client: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    topic = f"{_GROUP}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(timeout)
    try:
        _produce({**client, "message.timeout.ms": int(timeout * 1000)}, topic, deadline)
        _commit({**client, "group.id": _GROUP, "enable.auto.commit": False}, topic, deadline)
        _delete_group(bootstrap_servers)
    finally:
        with contextlib.suppress(KafkaException):
            admin.delete_topics([topic])[topic].result(timeout)


def _listens(bootstrap_servers: str) -> bool:
    host, port = bootstrap_servers.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _produce(config: dict[str, str | int | bool], topic: str, deadline: float) -> None:
    outcome: list[KafkaError | None] = []
    producer = Producer(config)
    producer.produce(topic, b"ready?", partition=0, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(max(0.0, deadline - time.monotonic()))
    if not outcome:
        raise BrokerUnavailableError("a record was not acknowledged in time")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])


def _commit(config: dict[str, str | int | bool], topic: str, deadline: float) -> None:
    outcome: list[KafkaError | None] = []

    def committed(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        outcome.append(error or next((p.error for p in partitions if p.error is not None), None))

    consumer = Consumer({**config, "on_commit": committed})
    try:
        # The synchronous form has no deadline.
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=True)
        while not outcome and time.monotonic() < deadline:
            consumer.poll(0.05)
    finally:
        # Closing waits for the broker, without a limit.
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(5)
    if not outcome:
        raise BrokerUnavailableError("a commit was not answered in time")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])


def _delete_group(bootstrap_servers: str) -> None:
    """Remove the group from the lists that users see; in a child process, which librdkafka may abort."""
    # A group that stays all the same loses its commit with the topic, and Kafka drops it some minutes later.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", _DELETE_GROUP, bootstrap_servers, _GROUP],
            capture_output=True,
            timeout=10,
            check=False,
        )
