"""What a sensor makes of the triggerer's event, and a task of its tries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.task.identity import commit_metadata

READING = {"total_lag": 7}


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        ("timeout", AirflowSensorTimeout),
        ("error", AirflowException),
        ("failed", AirflowFailException),
        ("of a later version", AirflowFailException),
    ],
)
def test_a_wait_that_ended_without_its_position_fails_as_it_did_in_the_triggerer(status, raised):
    pushed = {}
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))}
    sensor = ConsumerGroupLagSensor(task_id="gate", group_id="etl", max_lag=5)
    event = {"status": status, "reading": READING, "message": "the reason", "text": "the last table"}

    with pytest.raises(raised, match="the reason\nthe last table") as caught:
        sensor.execute_complete(context, event)
    assert type(caught.value) is raised
    assert pushed == {"return_value": READING}


def test_an_error_that_a_retry_mends_is_not_skipped_by_soft_fail():
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    sensor = ConsumerGroupLagSensor(task_id="gate", group_id="etl", max_lag=5, soft_fail=True)
    with pytest.raises(KafkaOffsetsError, match="the reason") as caught:
        sensor.execute_complete(context, {"status": "error", "message": "the reason"})
    # Airflow skips a task with soft_fail for this one.
    assert not isinstance(caught.value, AirflowException)


def test_a_retry_is_the_same_move_and_a_clear_is_another_one():
    def token(**of_task):
        names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
        context: Any = {"ti": SimpleNamespace(**{**names, "try_number": 1, "max_tries": 2, **of_task})}
        return commit_metadata(context).token

    assert token() == token(try_number=2)
    assert len({token(), token(max_tries=3), token(run_id="s"), token(map_index=0)}) == 4
