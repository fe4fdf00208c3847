from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_session import (  # noqa: F401
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
