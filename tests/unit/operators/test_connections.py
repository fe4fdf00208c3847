"""
A connection that cannot be used fails the task at once, and says what to set. Airflow tries the task again if
the connection is not defined: it says so, too, while a secrets backend does not answer.
"""

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from waiting import TaskInstance, deferred, end_of

from airflow_kafka_offsets.errors import DriftError, UsageError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

NOTHING = None
UNDEFINED = "connection 'other' is not defined: correct kafka_config_id, or add"
SET = "set the extra of a connection of type 'kafka'"
# Airflow 3.1 reports an extra that is no object to its log, and not to the caller.
EXTRA = f"{SET}|whose extra has bootstrap.servers"
WRONG = {
    "of another type": (
        {"conn_type": "aws", "login": "a"},
        f"'other' of type 'aws' has no bootstrap.servers .*{SET}",
    ),
    "without servers": (
        {"conn_type": "kafka", "host": "kafka-1", "port": 9092},
        f"host and port are not used.*{SET}",
    ),
    "with blank servers": ({"conn_type": "kafka", "extra": {"bootstrap.servers": " "}}, SET),
    "with a list of servers": ({"conn_type": "kafka", "extra": {"bootstrap.servers": ["a:1"]}}, SET),
    "with text as extra": ({"conn_type": "kafka", "extra": "kafka-1:9092"}, EXTRA),
    "with a list as extra": ({"conn_type": "kafka", "extra": "[1]"}, EXTRA),
    "with Java's settings": (
        {"conn_type": "kafka", "extra": {"bootstrap.servers": "a:1", "sasl.jaas.config": "hunter2"}},
        "connection 'other' of type 'kafka': sasl.jaas.config is a setting of Java clients only",
    ),
    "with a function that is not allowed": (
        {"conn_type": "kafka", "extra": {"bootstrap.servers": "a:1", "oauth_cb": "module.token"}},
        "connection 'other' of type 'kafka': .*callback_allowlist",
    ),
}


@pytest.fixture
def context():
    return {"ti": TaskInstance()}


@pytest.fixture
def connect(monkeypatch):
    """connect(fields) defines the connection ``other``; None: it is not there."""

    def use(fields):
        if fields is None:
            monkeypatch.delenv("AIRFLOW_CONN_OTHER", raising=False)
        else:
            monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(fields))

    return use


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_with_the_connections_id(connect, context, wrong):
    fields, said = WRONG[wrong]
    connect(fields)
    task = CommitOffsetsOperator(task_id="c", group_id="g", offsets={"t": {"0": 1}}, kafka_config_id="other")
    # For Airflow 3.1 a connection whose extra is no object is not defined, and may be there at the next try.
    with pytest.raises((AirflowFailException, UsageError), match=said) as refused:
        task.execute(context)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        (ResetOffsetsOperator, {"group_id": "g", "to_offset": 0}),
        (PlanOffsetWindowOperator, {"group_id": "g", "topics": "t"}),
        (ConsumerGroupLagSensor, {"group_id": "g", "max_lag": 0}),
        (ConsumerGroupLagSensor, {"group_id": "g", "max_lag": 0, "mode": "reschedule"}),
        (ConsumerGroupLagSensor, {"group_id": "g", "max_lag": 0, "deferrable": True}),
        (OffsetsReachedSensor, {"group_id": "g", "target": {"t": {"0": 1}}}),
        (TopicReachedSensor, {"topics": "t", "target": "2013-01-01"}),
    ],
)
def test_every_task_is_tried_again_if_it_is_not_defined(
    connect, context, operator: Any, parameters: dict[str, Any]
):
    connect(NOTHING)
    with pytest.raises(UsageError, match=UNDEFINED):
        operator(task_id="t", kafka_config_id="other", **parameters).execute(context)


def test_a_sensor_is_tried_again_if_the_triggerer_does_not_find_the_connection(
    connect, context, bootstrap_servers, make_topic, new_group, commit
):
    topic, group = make_topic(1), new_group()
    commit(group, topic, {0: 0})
    connect({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}})
    sensor = OffsetsReachedSensor(
        task_id="s", group_id=group, target={topic: {"0": 1}}, kafka_config_id="other", deferrable=True
    )
    trigger = deferred(sensor, context)
    connect(NOTHING)
    event = end_of(trigger)
    assert event["status"] == "error"
    with pytest.raises(AirflowException, match=UNDEFINED) as raised:
        sensor.execute_complete(context, event)
    assert not isinstance(raised.value, AirflowFailException)


def test_a_drift_check_names_the_pipeline_with_it_and_is_tried_again(connect, context, new_query):
    connect(NOTHING)
    query = new_query({"t": {0: 5}})
    check = CheckOffsetDriftOperator(
        task_id="d", group_id="g", checkpoint_location=query.location, kafka_config_id="other"
    )
    with pytest.raises(DriftError, match=UNDEFINED):
        check.execute(context)


def test_the_hook_of_ones_own_task_says_the_same(connect):
    connect({"conn_type": "kafka"})
    with pytest.raises(ValueError, match=SET):
        KafkaOffsetsHook("other").list_groups()
    assert KafkaOffsetsHook("other").test_connection()[0] is False


UNUSABLE = "has no usable hook .*store_conn_id"


@pytest.mark.parametrize(
    ("store_conn_id", "error", "says"),
    [
        ("nowhere", UsageError, UNUSABLE),
        ("of_no_type", AirflowFailException, UNUSABLE),
        ("of_kafka", AirflowFailException, "expected a connection to a database"),
    ],
)
def test_a_store_that_is_not_there_fails_at_once(context, monkeypatch, store_conn_id, error, says):
    # Airflow finds no hook of the type "generic", and raises an AttributeError.
    for name, kind in (("OF_NO_TYPE", "generic"), ("OF_KAFKA", "kafka")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": kind}))
    task = CommitOffsetsOperator(task_id="c", group_id="g", store_conn_id=store_conn_id, store_pipeline="p")
    with pytest.raises(error, match=f"connection '{store_conn_id}'.*{says}"):
        task.execute(context)
