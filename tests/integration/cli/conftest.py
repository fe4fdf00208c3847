import pytest
from commanded_pipeline import committed, do, group, query, topic, value  # noqa: F401
from moved_fleet import fleet_topic, pipelines, recovering  # noqa: F401


@pytest.fixture(autouse=True)
def the_broker(bootstrap_servers, monkeypatch):
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER", bootstrap_servers)
