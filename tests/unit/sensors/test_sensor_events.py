"""What a sensor makes of the triggerer's event."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

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
