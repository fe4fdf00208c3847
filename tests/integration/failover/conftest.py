import json

import pytest
from airflow_task import context  # noqa: F401
from mirrored_clusters import mirrored_clusters
from mirrored_pipeline import pipeline, pipelines, topic, topics  # noqa: F401
from spark_session import location, run, start  # noqa: F401


@pytest.fixture(scope="session")
def mirrored(until_scope_ends, tmp_path_factory):
    """A Kafka, its mirror, and a real MirrorMaker between them, which tests must not stop."""
    with until_scope_ends.enter(mirrored_clusters(tmp_path_factory.mktemp("mirrored"))) as found:
        yield found


@pytest.fixture
def connections(mirrored, monkeypatch):
    """The connections primary and standby; connections(name, servers) makes one lead elsewhere."""

    def lead(name, servers):
        value = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": servers}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", value)

    lead("primary", mirrored.source)
    lead("standby", mirrored.target)
    return lead
