from __future__ import annotations

import json

import pytest
from recovery_pipeline import ENDS, READ, Pipeline


@pytest.fixture(autouse=True)
def kafka_connection(bootstrap_servers, monkeypatch):
    """The connection ``kafka_default``, with keys of a consumer in it as teams have them."""
    extra = {"bootstrap.servers": bootstrap_servers, "group.id": "not-ours", "enable.auto.commit": True}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


@pytest.fixture
def holds(kafka_tools):
    """What Kafka's own tool says a group holds: {partition: offset} of its only topic."""

    def committed(group):
        return {row["partition"]: row["current_offset"] for row in kafka_tools.describe_rows(group)}

    return committed


class TaskInstance:
    """As much of a task instance as an operator outside a DAG needs."""

    dag_id, run_id, task_id, map_index = "flights", "manual__1", "commit", -1

    def __init__(self, **states):
        self.xcoms = {}
        self.states = states

    def get_task_states(self, dag_id, task_ids, run_ids):
        """Return what was given as states=, as Airflow does: {run_id: {task_id: state}}."""
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: {task: self.states.get(task) for task in task_ids}}

    def xcom_push(self, key, value):
        self.xcoms[key] = value


@pytest.fixture
def context():
    return {"ti": TaskInstance()}


@pytest.fixture(scope="module")
def recovery_topic(make_topic, produce):
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def pipeline(recovery_topic, new_query, new_group, commit, committed, context):
    """A recovery's pipeline, at 60 and 62."""
    group = new_group()
    commit(group, recovery_topic, READ)
    query = new_query({recovery_topic: READ})
    return Pipeline(recovery_topic, query, group, committed, type(context["ti"]))
