"""A fixture that writes records in transactions."""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.model.offsets import TopicPartition


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
