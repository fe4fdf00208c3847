"""Thresholds, positions and targets of sensors, and what they make of the triggerer's event."""

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout
from waiting import TaskInstance, no_answer

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

pytestmark = pytest.mark.usefixtures("memory")

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(config={"retention.ms": "-1"})
    produce(name, {0: 10, 1: 4}, {0: TIMES, 1: TIMES})
    return name


@pytest.fixture
def commit(group, topic):
    def move(first, second, third=0):
        offsets = {topic: {"0": first, "1": second, "2": third}}
        CommitOffsetsOperator(task_id="c", group_id=group, offsets=offsets).execute({})

    return move


@pytest.mark.parametrize(
    ("thresholds", "done"),
    [
        ({"max_lag": 3}, True),
        ({"max_lag": 2}, False),
        ({"max_partition_lag": 2}, True),
        ({"max_lag": 9, "max_partition_lag": 1}, False),
    ],
)
def test_every_threshold_that_is_given_has_to_hold(thresholds, done, group, commit):
    commit(8, 3)
    sensor = ConsumerGroupLagSensor(task_id="s", group_id=group, **thresholds)
    assert sensor.poke({}).is_done is done


def test_a_deferrable_sensor_with_nothing_to_wait_for_does_not_defer(group, commit):
    commit(10, 4)
    sensor = ConsumerGroupLagSensor(task_id="s", group_id=group, deferrable=True, max_lag=0)
    assert sensor.execute({})["total_lag"] == 0


def test_a_time_is_the_first_record_at_or_after_it(group, topic, commit):
    commit(3, 2)
    sensor = OffsetsReachedSensor(task_id="s", group_id=group, target="2026-03-01T12:03:00+00:00")
    looked = sensor.poke({})
    assert looked.is_done is False
    assert looked.xcom_value
    assert looked.xcom_value["target"] == {topic: {"0": 3, "1": 3, "2": 0}}
    assert looked.xcom_value["remaining"] == 1
    commit(3, 3)
    assert sensor.poke({}).is_done
    sensor._close()


def test_a_time_that_comes_soon_is_waited_for(group, topic, commit):
    commit(10, 4)
    soon = datetime.now(tz=timezone.utc) + timedelta(seconds=30)
    sensor = OffsetsReachedSensor(task_id="s", group_id=group, target=soon)
    # As for a run that starts at its target on a worker whose clock is slow.
    assert sensor.poke({}).is_done is False
    sensor._close()


def test_a_target_may_be_given_before_the_first_commit(group, topic, commit):
    sensor = OffsetsReachedSensor(task_id="s", group_id=group, target={topic: {"0": 5, "2": 0}})
    assert sensor.poke({}).is_done is False
    commit(5, 0)
    assert sensor.poke({}).is_done
    sensor._close()


@pytest.mark.parametrize("written", [dict, json.dumps], ids=["whole", "as a template writes it out"])
def test_a_receipt_is_a_target(written, group, topic, commit):
    receipt = CommitOffsetsOperator(task_id="c", group_id=group, offsets={topic: {"0": 5}}).execute({})
    sensor = OffsetsReachedSensor(task_id="s", group_id=group, target=written(receipt))
    assert sensor.execute({})["target"] == {topic: {"0": 5}}


def test_a_target_is_worked_out_as_soon_as_the_broker_answers(group, commit, topic, monkeypatch):
    commit(10, 4)
    sensor = OffsetsReachedSensor(
        task_id="s", group_id=group, deferrable=True, poke_interval=0, target="latest"
    )
    with monkeypatch.context() as away:
        away.setattr(OffsetsClient, "log_ranges", no_answer)
        monkeypatch.setattr(sensor.log, "warning", lambda *_: away.undo())
        assert sensor.execute({})["reached"] is True


def test_a_rescheduled_sensor_without_such_state_is_refused_the_log_end(group, commit):
    commit(5, 4)
    sensor = OffsetsReachedSensor(task_id="s", group_id=group, mode="reschedule", target="latest")
    with pytest.raises(AirflowFailException, match="needs Airflow 3.3"):
        sensor.execute({"ti": TaskInstance()})


def test_without_a_group_the_position_is_the_checkpoints(topic, new_query):
    query = new_query({topic: {0: 10, 1: 3, 2: 0}})
    sensor = ConsumerGroupLagSensor(task_id="s", checkpoint_location=query.location, max_lag=0)
    looked = sensor.poke({})
    assert looked.xcom_value
    assert not looked.is_done
    assert (looked.xcom_value["total_lag"], looked.xcom_value["position"]) == (1, "checkpoint")
    query.run(2, {topic: {0: 10, 1: 4, 2: 0}})
    assert sensor.poke({}).is_done
    sensor._close()


def test_beside_a_group_the_checkpoint_need_not_be_there_yet(group, commit, tmp_path):
    commit(10, 3)
    sensor = ConsumerGroupLagSensor(
        task_id="s", group_id=group, checkpoint_location=str(tmp_path / "later"), max_lag=1
    )
    assert sensor.execute({})["total_lag"] == 1


def test_with_both_the_position_is_the_groups_unless_said_otherwise(group, topic, commit, new_query):
    query = new_query({topic: {0: 10, 1: 4, 2: 0}})
    commit(5, 4)
    both = {"group_id": group, "checkpoint_location": query.location}
    assert ConsumerGroupLagSensor(task_id="s", **both, max_lag=5).execute({})["total_lag"] == 5
    reading = OffsetsReachedSensor(task_id="s", **both, target="latest", position="checkpoint").execute({})
    assert reading["position"] == "checkpoint"


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
