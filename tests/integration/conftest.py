"""A pipeline to move: a checkpoint as Spark leaves it, and a consumer that may be in the way."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from group_members import member_of
from moved_pipeline import cli, commit, committed, new_query  # noqa: F401
from spark_session import grow  # noqa: F401

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def client(bootstrap_servers: str) -> Iterator[OffsetsClient]:
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        yield client


@pytest.fixture
def member(bootstrap_servers: str) -> Iterator[Callable[[str, str], None]]:
    """member(group, topic) lets a consumer with client id a-reader join the group until the test ends."""
    with ExitStack() as members:
        yield lambda group, topic: members.enter_context(member_of(bootstrap_servers, group, topic))


@pytest.fixture
def send_in_transaction(bootstrap_servers: str) -> Callable[..., None]:
    """send_in_transaction(partition, timestamp, abort=False): one record, and the marker behind it."""
    producers: dict[TopicPartition, Producer] = {}

    def send(partition: TopicPartition, timestamp: int, *, abort: bool = False) -> None:
        if partition not in producers:
            settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": str(partition)}
            producers[partition] = Producer({**settings, "log_level": 0})
            producers[partition].init_transactions(30)
        producer = producers[partition]
        producer.begin_transaction()
        producer.produce(partition.topic, b"x", partition=partition.partition, timestamp=timestamp)
        assert producer.flush(20) == 0
        producer.abort_transaction(20) if abort else producer.commit_transaction(20)

    return send
