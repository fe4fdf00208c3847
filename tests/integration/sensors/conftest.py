import pytest
from airflow_task import connect, group, kafka_connection  # noqa: F401
from waiting import Store, TaskInstance


@pytest.fixture
def context():
    return {"ti": TaskInstance(), "task_state_store": Store()}
