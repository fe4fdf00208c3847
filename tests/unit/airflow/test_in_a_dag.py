"""How the operators and sensors stand in a DAG, without running it."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

ORDERS = KafkaPipeline(group_id="orders", checkpoint_location="s3a://lake/cp/orders", kafka_config_id="main")
EVERYTHING = (CommitOffsetsOperator, ResetOffsetsOperator, ConsumerGroupLagSensor, OffsetsReachedSensor)


@pytest.mark.parametrize("operator", EVERYTHING)
def test_a_pipeline_is_unpacked_into_every_operator(operator):
    task = operator(task_id="t", **ORDERS)
    assert {name: getattr(task, name) for name in PIPELINE_PARAMETERS} == dict(ORDERS)


@pytest.mark.parametrize("operator", EVERYTHING)
def test_a_pipeline_is_given_once_for_a_dag_or_a_group_of_tasks(operator):
    with DAG("d", default_args=dict(ORDERS)):
        in_dag = operator(task_id="t")
    with DAG("e"), TaskGroup("g", default_args=dict(ORDERS)):
        in_group = operator(task_id="t")
    assert in_dag.kafka_config_id == in_group.kafka_config_id == "main"
    assert in_dag.group_id == in_group.group_id == "orders"


@pytest.mark.parametrize("operator", EVERYTHING)
def test_all_five_parameters_are_templated(operator):
    assert set(PIPELINE_PARAMETERS) <= set(operator.template_fields)
    task = operator(
        task_id="t", group_id="{{ name }}-g", topics=["{{ name }}"], checkpoint_location="/{{ name }}"
    )
    task.render_template_fields({"name": "orders"})
    assert (task.group_id, task.topics, task.checkpoint_location) == ("orders-g", ["orders"], "/orders")


@pytest.mark.parametrize("operator", EVERYTHING)
def test_every_template_field_is_a_parameter_of_the_same_name(operator):
    task = operator(task_id="t", **ORDERS)
    for field in operator.template_fields:
        assert hasattr(task, field)


def test_pipelines_are_mapped():
    with DAG("d"):
        mapped = CommitOffsetsOperator.partial(task_id="t").expand_kwargs([dict(ORDERS), dict(ORDERS)])
    assert mapped.operator_class is CommitOffsetsOperator


def test_a_reset_runs_once_at_a_time_by_default():
    assert ResetOffsetsOperator(task_id="t", group_id="g", to_offset=0).max_active_tis_per_dag == 1


@pytest.mark.parametrize("operator", [CommitOffsetsOperator, ResetOffsetsOperator])
def test_a_group_is_asked_for_when_the_dag_is_written(operator):
    with pytest.raises(UsageError, match="group_id is missing"):
        operator(task_id="t")


@pytest.mark.parametrize("sensor", [ConsumerGroupLagSensor, OffsetsReachedSensor])
def test_a_position_is_asked_for_when_the_dag_is_written(sensor):
    with pytest.raises(UsageError, match="no position to look at"):
        sensor(task_id="t")


def test_something_to_commit_is_asked_for_when_the_dag_is_written():
    with pytest.raises(UsageError, match="nothing to commit"):
        CommitOffsetsOperator(task_id="t", group_id="g")
