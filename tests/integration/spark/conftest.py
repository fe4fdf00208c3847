from pathlib import Path

import pytest
from airflow_task import kafka_connection  # noqa: F401
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

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator


def pytest_collection_modifyitems(items):
    mark_below(Path(__file__).parent, items)


@pytest.fixture
def commit():
    return lambda group, checkpoint, **parameters: CommitOffsetsOperator(
        task_id="commit", group_id=group, checkpoint_location=checkpoint, **parameters
    ).execute({})
