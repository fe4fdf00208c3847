"""
Waits until a broker takes commits, and so records: a commit is a record in a topic of Kafka's own.

A broker listens some time before that, and a client that asked too early may stay confused for long: every
attempt has a client of its own.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPT = 5.0
"""Seconds of one attempt. On a fresh broker the first commit may never be answered, a second client's is."""

_GROUP = "airflow-kafka-offsets-ready"
_PARTITION = TopicPartition("__consumer_offsets", 0)


def wait_until_ready(bootstrap_servers: str, timeout: float, alive: Callable[[], bool]) -> bool:
    """
    Wait until an offset can be committed.

    :return: ``False`` if the process is not alive any more.
    :raises BrokerUnavailableError: if the time is over; its cause is the last attempt's error.
    """
    host, port = bootstrap_servers.rsplit(":", 1)
    config = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    deadline = Deadline(timeout)
    last: Exception | None = None
    while deadline.left > 0:
        if not alive():
            return False
        try:
            # librdkafka would wait longer and longer between its attempts to connect.
            socket.create_connection((host, int(port)), timeout=1).close()
            with OffsetsClient(config, timeout=_ATTEMPT) as client:
                client.commit(_GROUP, {_PARTITION: 0})
                client.delete_groups([_GROUP])
        except (OSError, BrokerError) as error:
            last = error
            time.sleep(0.05)
        else:
            return True
    raise BrokerUnavailableError(
        f"no commit was taken by {bootstrap_servers} within {timeout:.0f} s ({last})"
    ) from last
