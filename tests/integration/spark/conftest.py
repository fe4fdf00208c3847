from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from spark_session import (  # noqa: F401
    DEADLINE,
    grow,
    holds,
    location,
    mark_below,
    run,
    start,
    stream,
    wait_until,
)

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator


def pytest_collection_modifyitems(items):
    mark_below(Path(__file__).parent, items)


@pytest.fixture(autouse=True)
def kafka_connection(bootstrap_servers, monkeypatch):
    """The connection ``kafka_default``."""
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))


@pytest.fixture
def commit():
    return lambda group, checkpoint, **parameters: CommitOffsetsOperator(
        task_id="commit", group_id=group, checkpoint_location=checkpoint, **parameters
    ).execute({})


@pytest.fixture
def says(bootstrap_servers):
    """says(group) -> the metadata that is beside all its commits."""

    def metadata(group):
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            (text,) = {commit.metadata for commit in client.committed_everywhere(group).values()}
        assert text is not None
        return json.loads(text)

    return metadata


@pytest.fixture
def reading_member(bootstrap_servers):
    """
    reading_member(group, topic) -> a function that ends it; the consumer has joined and polls until then.
    """
    ends = []

    def join(group, topic):
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "client.id": "a-reader",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        joined, stop = threading.Event(), threading.Event()
        consumer.subscribe([topic], on_assign=lambda *_: joined.set())

        def read():
            while not stop.is_set():
                consumer.poll(0.1)
            consumer.close()

        thread = threading.Thread(target=read)

        def end():
            stop.set()
            thread.join(DEADLINE)

        ends.append(end)
        thread.start()
        assert joined.wait(DEADLINE), "the consumer did not join its group"
        return end

    yield join
    for end in ends:
        end()
