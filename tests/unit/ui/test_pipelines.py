"""Pipelines, and the tasks that name them."""

import json
from datetime import datetime

import pytest

from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline
from airflow_kafka_offsets.ui.history import is_of_pipeline
from airflow_kafka_offsets.ui.pipelines import (
    NOT_RUN,
    NamedTask,
    Pipeline,
    check_names,
    listed_pipelines,
    merge_pipelines,
    named_tasks,
    operator_kind,
)
from airflow_kafka_offsets.ui.receipts import TaskInstance, TaskOutcome

ORDERS = KafkaPipeline("orders", ["orders:0,1"], "s3a://lake/orders", "lake", "kafka_prod")


def listed(task_id="commit", module="airflow_kafka_offsets.operators.commit", fields=(), **values):
    """Return a task as Airflow's API does."""
    of = {"module_path": module, "class_name": "CommitOffsetsOperator"}
    return {"task_id": task_id, "class_ref": of, "template_fields": list(fields), **values}


def entry(names, task_id="commit", operator="CommitOffsetsOperator", dag_id="d", indexes=None):
    task = NamedTask(dag_id, task_id, operator)
    return Pipeline(dag_id, names, ((task, indexes),))


def test_tasks_of_this_package_and_those_derived_from_them_name_pipelines():
    derived = listed("derived", "company.operators", [*PIPELINE_PARAMETERS, "more"])
    tasks = [listed(), derived, listed("other", "company.operators", ["group_id"]), listed("none", None)]
    tasks.append({"task_id": "bare", "class_ref": None, "template_fields": None})

    found = named_tasks("d", tasks)

    assert found == [NamedTask("d", name, "CommitOffsetsOperator") for name in ("commit", "derived")]
    assert operator_kind("CommitOffsetsOperator") == "commit"


@pytest.mark.parametrize("value", ["(" * 5_000, "[" * 100_000, "", "5", ["KafkaPipeline(group_id='a')"], 5])
def test_a_value_that_lists_no_pipeline_has_none(value):
    assert listed_pipelines(value) == []


def test_a_list_of_pipelines_as_it_is_and_as_json():
    listed = [{"group_id": "a", "topics": None}]

    assert listed_pipelines(listed) == listed_pipelines(json.dumps(listed)) == [{"group_id": "a"}]


def test_the_entry_of_a_drift_check_may_be_a_plan():
    names = {"group_id": "a", "topics": None, "kafka_config_id": "kafka_prod"}
    plan = {"group_id": "a", "digest": "0", "names": names}
    assert listed_pipelines([plan]) == [{"group_id": "a", "kafka_config_id": "kafka_prod"}]


def test_what_airflow_has_cut_off_names_nothing():
    cut = "Truncated. You can change this behaviour in [core]max_templated_field_length. [{'group_id': 'g"

    assert listed_pipelines(cut) == []
    assert Pipeline("d", {"group_id": "g", "checkpoint_location": cut}).unresolved_parameters == [
        "checkpoint_location"
    ]


@pytest.mark.parametrize("value", ["***", "{{ x }}", ["a", "***"]])
def test_what_airflow_has_cut_off_or_masked_is_unknown(value):
    pipeline = entry({"group_id": "g", "topics": value})

    assert pipeline.unresolved_parameters == ["topics"]


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

    found = merge_pipelines([sensor, elsewhere, commit])

    assert [(each.kafka_config_id, [task.task_id for task, _ in each.tasks]) for each in found] == [
        ("kafka_test", ["wait"]),
        ("kafka_prod", ["commit", "wait"]),
    ]
    assert found[1].checkpoint == "s3a://lake/orders"
    assert found[1].topics == ["orders:0,1"]


def test_a_checkpoint_alone_is_that_of_the_group():
    commit = entry({"group_id": "orders", "checkpoint_location": "/data"})
    sensor = entry({"checkpoint_location": "/data", "topics": "t", "checkpoint_conn_id": "lake"}, "wait")

    (found,) = merge_pipelines([sensor, commit])

    assert found.group_ids == ["orders"]
    assert [task.task_id for task, _ in found.tasks] == ["commit", "wait"]


def test_pipelines_of_two_dags_or_with_two_checkpoints_are_two():
    one, other = (
        {"group_id": "g", "checkpoint_location": "/a"},
        {"group_id": "g", "checkpoint_location": "/b"},
    )

    assert len(merge_pipelines([entry(one), entry(other), entry(one, dag_id="e")])) == 3


def test_the_page_of_a_dag_begins_with_a_pipeline_whose_names_are_known():
    """A task after a failed one has rendered nothing."""
    commit, reset = entry({"group_id": NOT_RUN}), entry({"group_id": "g"}, "reset")

    assert [each.group_ids for each in merge_pipelines([commit, reset])] == [["g"], []]


def test_the_key_does_not_depend_on_tasks_and_their_order():
    tasks = [entry(dict(ORDERS), name) for name in ("a", "b", "c")]

    keys = {merge_pipelines(each)[0].key for each in (tasks, tasks[::-1], tasks[:1])}

    assert len(keys) == 1


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

    assert [each.topics for each in merge_pipelines(named)] == [topics]
    assert [each.topics for each in merge_pipelines(named[::-1])] == [topics]


def test_a_group_by_topic_does_not_hide_its_other_topics():
    (found,) = merge_pipelines(
        [entry({"group_id": {"a": "g"}, "topics": "a"}), entry({"group_id": "g"}, "wait")]
    )

    assert (found.groups.group_id, found.topics) == ("g", None)


def test_a_checkpoint_keeps_its_own_topics():
    commit = entry({"group_id": "g", "checkpoint_location": "/data", "topics": "a"})
    sensor = entry({"group_id": "g", "topics": "b"}, "wait")

    assert [each.topics for each in merge_pipelines([commit, sensor])] == [["a"]]


def moved(index, groups=("g",), checkpoint=None):
    instance = TaskInstance("d", "r", "reset", index, datetime(2026, 1, 1))
    return TaskOutcome(instance, "reset", groups, checkpoint)


def test_a_mapped_move_is_of_the_cluster_of_its_index():
    eu, us = (
        entry({"group_id": "g", "kafka_config_id": name}, "reset", indexes=frozenset([index]))
        for index, name in enumerate(("eu", "us"))
    )

    assert (is_of_pipeline(moved(1), eu), is_of_pipeline(moved(1), us)) == (False, True)


def test_a_move_of_another_checkpoint_is_of_another_pipeline():
    one, other = (
        entry({"group_id": "g", "checkpoint_location": at}, "reset") for at in ("/data/a", "/data/b/")
    )
    move = moved(-1, checkpoint="/data/b")

    assert (is_of_pipeline(move, one), is_of_pipeline(move, other)) == (False, True)
