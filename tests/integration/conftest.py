"""A pipeline to move: a checkpoint as Spark leaves it, and a consumer that may be in the way."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from command_line_words import words_of_dags
from confluent_kafka import Consumer, Producer
from spark_session import grow  # noqa: F401
from written_query import QUERY_ID, Query

from airflow_kafka_offsets.cli import main
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


DEADLINE = 30.0


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def new_query(tmp_path: Path) -> Callable[..., Query]:
    """
    new_query({topic: {0: 5}}, ...) -> a query that was stopped after batch 1, which ended at these offsets.
    """
    numbers = itertools.count()

    def make(*sources: Mapping[str, Mapping[int, int]], query_id: str = QUERY_ID) -> Query:
        query = Query(tmp_path / f"checkpoint-{next(numbers)}", query_id)
        first = [{topic: dict.fromkeys(ends, 0) for topic, ends in source.items()} for source in sources]
        query.run(0, *first)
        query.run(1, *sources)
        return query

    return make


@pytest.fixture
def client(bootstrap_servers: str) -> Iterator[OffsetsClient]:
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        yield client


@pytest.fixture
def commit(broker: OffsetsClient) -> Callable[..., None]:
    """commit(group, topic, {0: 5}, metadata="")."""

    def make(group: str, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        to = {TopicPartition(topic, number): offset for number, offset in offsets.items()}
        broker.commit(group, to, metadata)

    return make


@pytest.fixture
def committed(broker: OffsetsClient) -> Callable[[str, str], dict[int, int]]:
    """
    committed(group, topic) -> {partition: offset} of the first three, without those that have no commit.
    """

    def look(group: str, topic: str) -> dict[int, int]:
        found = broker.committed(group, [TopicPartition(topic, number) for number in range(3)])
        return {tp.partition: commit.offset for tp, commit in found.items() if commit is not None}

    return look


@pytest.fixture
def member(bootstrap_servers: str) -> Iterator[Callable[[str, str], None]]:
    """member(group, topic) lets a consumer with client id a-reader join the group until the test ends."""
    stop = threading.Event()
    ends: list[Callable[[], Any]] = []

    def join(group: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": group, "client.id": "a-reader"}
        consumer = Consumer(settings | {"enable.auto.commit": False, "log_level": 0})
        joined = threading.Event()
        consumer.subscribe([topic], on_assign=lambda *_: joined.set())

        def read() -> None:
            while not stop.is_set():
                consumer.poll(0.1)

        thread = threading.Thread(target=read)
        thread.start()
        ends.extend([thread.join, consumer.close])
        assert joined.wait(30)

    yield join
    stop.set()
    for end in ends:
        end()


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


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs the command line in this process: cli("checkpoint", "show", uri) -> exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["airflow-kafka-offsets", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        done = Done(int(end.value.code or 0), *capsys.readouterr())
        assert not words_of_dags(done.err, keys="--pipelines" in arguments), done.err
        assert done.out.startswith("{") or not words_of_dags(done.out), done.out
        return done

    return run
