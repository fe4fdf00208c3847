"""How the operators and sensors stand in a DAG, without running it."""

from functools import partial

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup, task_group
from every_task import GIVEN

from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import WINDOW_CONF_KEY, OffsetWindow
from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline

ORDERS = KafkaPipeline(group_id="orders", checkpoint_location="s3a://lake/cp/orders", kafka_config_id="main")
NEEDED = {
    each: {name: value for name, value in given.items() if name not in PIPELINE_PARAMETERS}
    for each, given in GIVEN.items()
    if each is not AuditWindowOperator
}
"""What a task needs besides the names of a pipeline."""
MOVING = (
    partial(ResetOffsetsOperator, to_offset="earliest"),
    partial(RestoreOffsetsOperator, from_file="/before.csv"),
)


@pytest.mark.parametrize("operator", NEEDED)
def test_a_pipeline_is_unpacked_into_a_task_or_given_once_for_a_dag_or_a_group_of_tasks(operator):
    needed = NEEDED[operator]
    alone = operator(task_id="t", **ORDERS, **needed)
    with DAG("d", default_args=dict(ORDERS)):
        in_dag = operator(task_id="t", **needed)
    with DAG("e"), TaskGroup("g", default_args=dict(ORDERS)):  # type: ignore[arg-type]
        in_group = operator(task_id="t", **needed)
    for task in (alone, in_dag, in_group):
        assert {name: getattr(task, name) for name in PIPELINE_PARAMETERS} == dict(ORDERS)


@pytest.mark.parametrize("operator", NEEDED)
def test_all_five_parameters_are_templated(operator):
    task = operator(
        task_id="t",
        group_id="{{ name }}-g",
        topics=["{{ name }}"],
        checkpoint_location="/{{ name }}",
        **NEEDED[operator],
    )
    assert set(PIPELINE_PARAMETERS) <= set(task.template_fields)
    task.render_template_fields({"name": "orders"})
    assert (task.group_id, task.topics, task.checkpoint_location) == ("orders-g", ["orders"], "/orders")


@pytest.mark.parametrize("operator", MOVING)
def test_what_moves_a_pipeline_back_and_forth_runs_once_at_a_time_by_default(operator):
    assert operator(task_id="t", group_id="g").max_active_tis_per_dag == 1


@pytest.mark.parametrize("cls", [ResetOffsetsOperator, RestoreOffsetsOperator])
def test_a_mapped_move_runs_one_at_a_time_unless_asked_otherwise(cls):
    def mapped(default_args=None, **parameters):
        with DAG("d", default_args=default_args or {}):
            return cls.partial(task_id="t", **parameters).expand(group_id=["a", "b"]).max_active_tis_per_dag

    assert mapped() == 1
    assert mapped(max_active_tis_per_dag=3) == 3
    assert mapped({"max_active_tis_per_dag": 2}) == 2
    assert mapped(max_active_tis_per_dag=None) is None


def test_plans_of_resets_are_made_at_the_same_time_also_if_mapped():
    pipelines = [[{"group_id": "a"}], [{"group_id": "b"}]]
    with DAG("d"):
        plans = PlanResetsOperator.partial(task_id="t", to_offset="earliest").expand(pipelines=pipelines)
    assert plans.max_active_tis_per_dag is None


def test_a_planned_window_goes_to_the_job_and_to_the_commit():
    with DAG("d"), TaskGroup("g"):
        plan = PlanOffsetWindowOperator(task_id="plan", **ORDERS)
        commit = CommitOffsetWindowOperator(task_id="commit", window=plan.output, **ORDERS)
    assert plan.spark_conf() == {
        WINDOW_CONF_KEY: "{{ ti.xcom_pull(task_ids='g.plan', key='kafka_offsets.window') }}"
    }
    assert commit.upstream_task_ids == {"g.plan"}


def test_in_a_mapped_group_each_job_gets_the_window_of_its_own_index():
    """Without map_indexes= Airflow 3 returns the windows of all indexes, or the only one that is there."""
    plans = []
    with DAG("d"):

        @task_group
        def hours(topics):
            with TaskGroup("inner"):
                plans.append(PlanOffsetWindowOperator(task_id="plan", topics=topics, start="earliest"))

        hours.expand(topics=["orders", "payments"])
    assert plans[0].spark_conf() == {
        WINDOW_CONF_KEY: "{{ ti.xcom_pull(task_ids='hours.inner.plan', key='kafka_offsets.window', "
        "map_indexes=ti.map_index) }}"
    }


def test_a_window_stays_text_where_templates_are_rendered_to_objects():
    """A dict would reach the job as Python spells it."""
    window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(1, 2)}, source={"limited": False})
    with DAG("d", render_template_as_native_obj=True):
        task = EmptyOperator(task_id="t")
    rendered = task.render_template(
        "{{ value }}", {"value": window.as_text()}, DAG.get_template_env(task.dag)
    )
    assert rendered == window.as_text()
