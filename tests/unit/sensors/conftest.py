import pytest
from airflow_task import group  # noqa: F401
from waiting import Store, TaskInstance, behind, fast_polls  # noqa: F401


@pytest.fixture
def context():
    return {"ti": TaskInstance(), "task_state_store": Store()}
