import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

from airflow_kafka_offsets.local.jars import KAFKA_VERSION


@pytest.fixture
def join_group(bootstrap_servers) -> Iterator[Callable[..., Consumer]]:
    """join_group(group, topic, **settings) -> a consumer that has joined and holds all partitions."""
    members: list[Consumer] = []

    def join(group: str, topic: str, **settings: str) -> Consumer:
        if settings.get("group.protocol") == "consumer" and KAFKA_VERSION.startswith("3."):
            pytest.skip("before Kafka 4 the new protocol of groups is off by default")
        assigned = threading.Event()
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "log_level": 0,
                "enable.auto.commit": False,
            }
            | settings
        )
        members.append(consumer)
        consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
        for _ in range(300):
            consumer.poll(0.1)
            if assigned.is_set():
                return consumer
        pytest.fail("the consumer did not join its group")

    yield join
    for member in members:
        member.close()
