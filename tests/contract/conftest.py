"""The two brokers that the contract holds for: the one in memory, and a real Kafka."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from group_members import member_of
from memory_broker import MemoryBroker
from memory_clients import connected, open_client
from spark_session import grow  # noqa: F401
from transactions import send_in_transaction  # noqa: F401

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition


class Memory:
    """What tests do to the broker in memory."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.client = open_client(self.broker)

    def topic(
        self, partitions: int = 3, times: dict[int, Sequence[int]] | None = None, **settings: str
    ) -> str:
        name = f"topic-{len(self.broker.topics)}"
        self.broker.create(name, partitions, settings)
        for number, moments in (times or {}).items():
            self.broker.append(name, number, moments)
        return name

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        for number, offset in before.items():
            self.broker.delete_records(topic, number, offset)

    def send_in_transaction(self, tp: TopicPartition, timestamp: int) -> None:
        self.broker.append_in_transaction(tp, timestamp)

    def recreate(self, topic: str, partitions: int) -> None:
        self.broker.create(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self.broker.grow(topic, partitions)

    def user(self, *rights: tuple[str, str, str]) -> OffsetsClient:
        return open_client(self.broker, rights)

    @contextmanager
    def member(self, group: str, topic: str) -> Iterator[None]:
        self.broker.join(group, "m", "a-reader", (topic,))
        yield
        self.broker.leave(group, "m")


class Real:
    """What tests do to a real Kafka."""

    def __init__(
        self,
        servers: str,
        make_topic: Callable,
        produce: Callable,
        recreate: Callable,
        delete_records: Callable,
        add_partitions: Callable,
        in_transaction: Callable = pytest.fail,
    ) -> None:
        self._servers, self._make_topic, self._produce = servers, make_topic, produce
        self.recreate, self.delete_records, self.grow = recreate, delete_records, add_partitions
        self.send_in_transaction = in_transaction
        self.client = OffsetsClient({"bootstrap.servers": servers}, timeout=20)

    def topic(
        self, partitions: int = 3, times: dict[int, Sequence[int]] | None = None, **settings: str
    ) -> str:
        name: str = self._make_topic(partitions, {"retention.ms": "-1", **settings})
        if times:
            self._produce(name, {number: len(moments) for number, moments in times.items()}, times)
        return name

    def member(self, group: str, topic: str) -> AbstractContextManager[None]:
        return member_of(self._servers, group, topic)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.integration)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker that tests may write to, with a client in ``client``."""
    if request.param == "memory":
        with connected():
            yield Memory()
        return
    names = "bootstrap_servers make_topic produce recreate delete_records grow send_in_transaction"
    real = Real(*map(request.getfixturevalue, names.split()))
    with real.client:
        yield real


class Secured(Real):
    """A Kafka with users."""

    def __init__(self, kafka: Any, make_topic: Callable, produce: Callable) -> None:
        def make(partitions: int, config: dict[str, str]) -> str:
            name: str = make_topic(partitions, config, on=kafka.plain)
            return name

        def write(*given: Any) -> None:
            produce(*given, on=kafka.plain)

        super().__init__(kafka.plain, make, write, *[lambda *_: None] * 3)
        self._kafka = kafka
        self.clients: list[OffsetsClient] = []

    def user(self, *rights: tuple[str, str, str]) -> OffsetsClient:
        self.clients.append(OffsetsClient(self._kafka.user("bob", *rights), timeout=20))
        return self.clients[-1]


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.integration)])
def secured(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker with users: user(("topic", name, "Read"), ...) -> a client with these rights alone."""
    if request.param == "memory":
        with connected():
            yield Memory()
        return
    real = Secured(*map(request.getfixturevalue, ("secured_kafka", "make_topic", "produce")))
    yield real
    for client in (real.client, *real.clients):
        client.close()
