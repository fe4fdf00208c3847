"""Fixtures for operators on a Kafka in memory, with the names of those for a real one."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from memory_broker import MemoryBroker
from memory_clients import connected, open_client

from airflow_kafka_offsets.kafka.client import OffsetsClient

SERVERS = "in-memory:9092"
"""The address that connections and command lines name."""


@pytest.fixture(autouse=True)
def memory_connected() -> Iterator[None]:
    """Clients find the brokers in memory, and take no time."""
    with connected():
        yield


@pytest.fixture(scope="session")
def bootstrap_servers() -> str:
    """The address that a command line may name: no test here starts a Kafka for it."""
    return SERVERS


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The broker behind the connection ``kafka_default``, for operators, sensors and the command line."""
    found = MemoryBroker()
    found.config(address=SERVERS)
    connection = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": SERVERS}})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER", SERVERS)
    return found


@pytest.fixture
def broker(memory: MemoryBroker) -> Iterator[OffsetsClient]:
    with open_client(memory) as client:
        yield client


@pytest.fixture
def client(broker: OffsetsClient) -> OffsetsClient:
    return broker


@pytest.fixture
def make_topic(memory: MemoryBroker) -> Callable[..., str]:
    """make_topic(partitions=3, config=None) -> the name of a new topic; by default it keeps its records."""

    def make(partitions: int = 3, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        memory.create(name, partitions, config)
        return name

    return make


@pytest.fixture
def produce(memory: MemoryBroker) -> Callable[..., None]:
    """produce(topic, {0: 2, 1: 1}, {0: [1000, 2000], 1: [1000]}) writes records, by default of now."""

    def send(
        topic: str, counts: Mapping[int, int], timestamps_ms: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        for number, count in counts.items():
            times = (timestamps_ms or {}).get(number, [int(time.time() * 1000)] * count)
            memory.append(topic, number, times[:count])

    return send


@pytest.fixture
def send_in_transaction(memory: MemoryBroker) -> Callable[..., None]:
    """send_in_transaction(partition, *timestamps): records, and the marker behind them."""
    return memory.append_in_transaction


@pytest.fixture
def grow(memory: MemoryBroker) -> Callable[[str, int], None]:
    """grow(topic, partitions) adds partitions."""
    return memory.grow


@pytest.fixture
def holds(broker: OffsetsClient) -> Callable[[str], dict[int, int]]:
    """holds(group) -> {partition: offset} of its only topic."""

    def committed(group: str) -> dict[int, int]:
        found = broker.committed_everywhere(group)
        return {tp.partition: commit.offset for tp, commit in found.items()}

    return committed


@pytest.fixture
def member(memory: MemoryBroker) -> Callable[[str, str], None]:
    """member(group, topic) lets a consumer with client id a-reader join the group."""

    def join(group: str, topic: str) -> None:
        memory.join(group, "a-reader-1", "a-reader", (topic,))

    return join


@pytest.fixture
def delete_records(memory: MemoryBroker) -> Callable[[str, Mapping[int, int]], None]:
    """delete_records(topic, {0: 4}) moves the log start of partition 0 to offset 4."""

    def delete(topic: str, before: Mapping[int, int]) -> None:
        for number, offset in before.items():
            memory.delete_records(topic, number, offset)

    return delete


@pytest.fixture
def recreate(memory: MemoryBroker) -> Callable[[str, int], None]:
    """recreate(topic, partitions) deletes a topic and creates another one of its name."""
    return memory.create


@pytest.fixture
def recovery_topic(make_topic: Callable[..., str], produce: Callable[..., None]) -> str:
    from recovery_pipeline import ENDS  # with it comes Airflow, which most rooms do without

    name = make_topic(2)
    produce(name, ENDS)
    return name
