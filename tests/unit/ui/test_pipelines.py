"""Pipelines in serialized DAGs."""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.ui.discovery import concerns
from airflow_kafka_offsets.ui.pipelines import (
    NamedTask,
    Pipeline,
    check_names,
    merged,
    named_tasks,
    read_pipelines,
    unresolved,
)
from airflow_kafka_offsets.ui.receipts import Instance, Move

ORDERS = KafkaPipeline("orders", ["orders:0,1"], "s3a://lake/orders", "lake", "kafka_prod")


class OwnCommit(CommitOffsetsOperator):
    """A user's own operator."""


@pytest.fixture
def dag():
    with DAG("d", start_date=datetime(2026, 1, 1), schedule=None) as dag:
        yield dag


@pytest.fixture
def tasks(dag):
    """Return the tasks of the DAG as they are in the database."""
    from airflow.serialization.serialized_objects import LazyDeserializedDAG

    return lambda: {task.task_id: task for task in named_tasks("d", LazyDeserializedDAG.from_dag(dag).data)}


def entry(names, task_id="commit", operator="CommitOffsetsOperator", dag_id="d", indexes=None):
    task = NamedTask(dag_id, task_id, operator, names)
    return Pipeline(dag_id, names, ((task, indexes),), frozenset(["dag"]))


def test_a_task_that_names_a_pipeline(dag, tasks):
    CommitOffsetsOperator(task_id="commit", **ORDERS)

    task = tasks()["commit"]

    assert task.complete
    assert task.literal == [dict(ORDERS)]
    assert task.kind == "commit"


def test_an_operator_derived_from_ours_is_ours(dag, tasks):
    OwnCommit(task_id="own", **ORDERS)

    assert tasks()["own"].operator == "OwnCommit"


def test_a_template_is_known_to_a_run_only(dag, tasks):
    CommitOffsetsOperator(task_id="commit", group_id="{{ params.group }}", checkpoint_location="/data")

    task = tasks()["commit"]

    assert not task.complete
    assert task.literal == []


def test_mapped_tasks_name_a_pipeline_for_each_index(dag, tasks):
    other = KafkaPipeline("refunds", checkpoint_location="/data/refunds")
    partial = CommitOffsetsOperator.partial(task_id="all", on_out_of_range="clamp")
    partial.expand_kwargs([dict(ORDERS), dict(other)])
    CommitOffsetsOperator.partial(task_id="each", checkpoint_location="/data").expand(group_id=["a", "b"])

    found = tasks()

    assert found["all"].complete
    assert [names["group_id"] for names in found["all"].literal] == ["orders", "refunds"]
    assert [names["kafka_config_id"] for names in found["all"].literal] == ["kafka_prod", "kafka_default"]
    assert [names["group_id"] for names in found["each"].literal] == ["a", "b"]


def test_a_mapped_task_over_the_output_of_another_is_known_to_a_run_only(dag, tasks):
    plan = PlanOffsetWindowOperator(task_id="plan", group_id="x", topics="t")
    CommitOffsetsOperator.partial(task_id="all", checkpoint_location="/data").expand(group_id=plan.output)

    assert not tasks()["all"].complete


def test_a_drift_check_names_several(dag, tasks):
    CheckOffsetDriftOperator(
        task_id="drift", pipelines=[ORDERS, {"group_id": "b", "checkpoint_location": "/b"}]
    )

    task = tasks()["drift"]

    assert [(names["group_id"], names["kafka_config_id"]) for names in task.literal] == [
        ("orders", "kafka_prod"),
        ("b", "kafka_default"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "KafkaPipeline(group_id=__import__('os').system('x'))",
        "Other(group_id='a')",
        "KafkaPipeline(group_id='a'",
        "(" * 5_000,
        "",
    ],
)
def test_a_text_that_is_no_pipeline_is_none(text):
    task = {"task_id": "t", "_task_module": "airflow_kafka_offsets.operators.drift", "pipelines": [text]}

    (found,) = named_tasks("d", {"dag": {"tasks": [{"__type": "operator", "__var": task}]}})

    assert found.several == ()


def test_a_list_that_airflow_stores_as_one_text():
    """As Airflow does before 3.2.2."""
    listed = [
        KafkaPipeline(group_id="a'b", checkpoint_location="/a"),
        {"group_id": "{{ x }}", "topics": None},
    ]

    assert read_pipelines(str(listed)) == [
        {"group_id": "a'b", "checkpoint_location": "/a", "kafka_config_id": "kafka_default"},
        {"group_id": "{{ x }}"},
    ]
    assert read_pipelines('[{"group_id": "a", "topics": null}]') == [{"group_id": "a"}]


def test_a_drift_check_of_which_airflow_cuts_the_names_off(dag, tasks, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__MAX_TEMPLATED_FIELD_LENGTH", "300")
    CheckOffsetDriftOperator(task_id="drift", pipelines=[ORDERS] * 10)

    task = tasks()["drift"]

    assert (task.complete, task.literal, unresolved(task.names)) == (False, [], ["group_id"])


def test_a_name_that_airflow_cuts_off_is_unknown(dag, tasks, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__MAX_TEMPLATED_FIELD_LENGTH", "100")
    CommitOffsetsOperator(task_id="commit", **{**ORDERS, "checkpoint_location": f"s3a://lake/{'x' * 200}"})

    task = tasks()["commit"]

    assert (task.complete, unresolved(task.names)) == (False, ["checkpoint_location"])


@pytest.mark.parametrize("value", ["***", "{{ x }}", ["a", "***"]])
def test_what_airflow_has_cut_off_or_masked_is_unknown(value):
    pipeline = entry({"group_id": "g", "topics": value})

    assert pipeline.unresolved == ["topics"]


@pytest.mark.parametrize(
    "names",
    [
        {"group_id": "g", "checkpoint_location": "s3a://KEY:SECRET@bucket/x"},
        {"group_id": "g\0"},
        {"group_id": 7},
        {"group_id": "g", "topics": [[]]},
    ],
)
def test_names_of_no_pipeline_are_refused_without_their_secrets(names):
    problem = check_names(names)

    assert problem
    assert "SECRET" not in problem


def test_tasks_of_one_pipeline_are_one_entry():
    commit = entry(dict(ORDERS))
    sensor = entry({"group_id": "orders", "kafka_config_id": "kafka_prod"}, "wait", "ConsumerGroupLagSensor")
    elsewhere = entry(
        {"group_id": "orders", "kafka_config_id": "kafka_test"}, "wait", "ConsumerGroupLagSensor"
    )

    found = merged([sensor, elsewhere, commit])

    assert [(each.kafka_config_id, [task.task_id for task, _ in each.tasks]) for each in found] == [
        ("kafka_test", ["wait"]),
        ("kafka_prod", ["commit", "wait"]),
    ]
    assert found[1].checkpoint == "s3a://lake/orders"
    assert found[1].topics == ["orders:0,1"]


def test_a_checkpoint_alone_is_that_of_the_group():
    commit = entry({"group_id": "orders", "checkpoint_location": "/data"})
    sensor = entry({"checkpoint_location": "/data", "topics": "t", "checkpoint_conn_id": "lake"}, "wait")

    (found,) = merged([sensor, commit])

    assert found.group_ids == ["orders"]
    assert [task.task_id for task, _ in found.tasks] == ["commit", "wait"]


def test_pipelines_of_two_dags_or_with_two_checkpoints_are_two():
    one, other = (
        {"group_id": "g", "checkpoint_location": "/a"},
        {"group_id": "g", "checkpoint_location": "/b"},
    )

    assert len(merged([entry(one), entry(other), entry(one, dag_id="e")])) == 3


def test_the_key_does_not_depend_on_tasks_and_their_order():
    tasks = [entry(dict(ORDERS), name) for name in ("a", "b", "c")]

    keys = {merged(each)[0].key for each in (tasks, tasks[::-1], tasks[:1])}

    assert len(keys) == 1


def test_a_sensor_of_a_checkpoint_names_a_pipeline_without_a_group(dag, tasks):
    ConsumerGroupLagSensor(task_id="wait", checkpoint_location="/data", max_lag=1)

    (names,) = tasks()["wait"].literal

    assert entry(names).group_ids == []
    assert entry(names).checkpoint == "/data"


@pytest.mark.parametrize(
    ("one", "other", "topics"),
    [
        (None, "orders:0", None),
        ("orders:0", None, None),
        ("orders:0", "orders:1", ["orders:0,1"]),
        ("orders:0", ["orders", "refunds"], ["orders", "refunds"]),
    ],
)
def test_the_topics_of_all_tasks_count(one, other, topics):
    named = [
        entry({"group_id": "g", "topics": each}, name) for each, name in ((one, "reset"), (other, "wait"))
    ]

    assert [each.topics for each in merged(named)] == [topics]
    assert [each.topics for each in merged(named[::-1])] == [topics]


def test_a_group_by_topic_does_not_hide_its_other_topics():
    (found,) = merged([entry({"group_id": {"a": "g"}, "topics": "a"}), entry({"group_id": "g"}, "wait")])

    assert (found.groups.group_id, found.topics) == ("g", None)


def test_a_checkpoint_keeps_its_own_topics():
    commit = entry({"group_id": "g", "checkpoint_location": "/data", "topics": "a"})
    sensor = entry({"group_id": "g", "topics": "b"}, "wait")

    assert [each.topics for each in merged([commit, sensor])] == [["a"]]


def moved(index, groups=("g",), checkpoint=None):
    instance = Instance("d", "r", "reset", index, datetime(2026, 1, 1))
    return Move(instance, "reset", groups, checkpoint)


def test_a_mapped_move_is_of_the_cluster_of_its_index(dag, tasks):
    CommitOffsetsOperator.partial(task_id="reset", group_id="g", offsets={"t": {"0": 1}}).expand(
        kafka_config_id=["eu", "us"]
    )
    task = tasks()["reset"]

    eu, us = (Pipeline("d", names, ((task, indexes),)) for names, indexes in task.entries)

    assert (eu.kafka_config_id, us.kafka_config_id) == ("eu", "us")
    assert (concerns(moved(1), eu), concerns(moved(1), us)) == (False, True)
    assert task.names_of(1)["kafka_config_id"] == "us"
    assert task.names_of(2) == {}


def test_a_move_of_another_checkpoint_is_of_another_pipeline():
    one, other = (
        entry({"group_id": "g", "checkpoint_location": at}, "reset") for at in ("/data/a", "/data/b/")
    )
    move = moved(-1, checkpoint="/data/b")

    assert (concerns(move, one), concerns(move, other)) == (False, True)
