"""Fixtures of tests that run an operator or a sensor by itself: its connection, its context, a pipeline."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from recovery_pipeline import ENDS, READ, Pipeline

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """connect(servers or settings, conn_id="kafka_default") defines a Kafka connection."""
    return partial(_define_connection, monkeypatch)


@pytest.fixture(autouse=True)
def kafka_connection(bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``kafka_default``, with keys of a consumer in it as teams have them."""
    extra = {"bootstrap.servers": bootstrap_servers, "group.id": "not-ours", "enable.auto.commit": True}
    _define_connection(monkeypatch, extra)


def _define_connection(
    monkeypatch: pytest.MonkeyPatch, to: str | Mapping[str, Any], conn_id: str = "kafka_default"
) -> None:
    extra = {"bootstrap.servers": to} if isinstance(to, str) else dict(to)
    connection = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", connection)


@pytest.fixture
def topic(make_topic: Callable[..., str], produce: Callable[..., None]) -> str:
    """A topic of two partitions with 10 and 6 records."""
    name = make_topic(2)
    produce(name, {0: 10, 1: 6})
    return name


@pytest.fixture
def group(new_group: Callable[[], str]) -> str:
    return new_group()


@pytest.fixture
def holds(kafka_tools: Any) -> Callable[[str], dict[int, int]]:
    """What Kafka's own tool says a group holds: {partition: offset} of its only topic."""

    def committed(group: str) -> dict[int, int]:
        return {row["partition"]: row["current_offset"] for row in kafka_tools.describe_rows(group)}

    return committed


class TaskInstance:
    """As much of a task instance as an operator outside a DAG needs."""

    dag_id, run_id, task_id, map_index = "flights", "manual__1", "commit", -1

    def __init__(self, **states: str) -> None:
        self.xcoms: dict[str, Any] = {}
        self.states = states

    def get_task_states(
        self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]
    ) -> dict[str, dict[str, str | None]]:
        """Return what was given as states=, as Airflow does: {run_id: {task_id: state}}."""
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: {task: self.states.get(task) for task in task_ids}}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture
def context() -> dict[str, Any]:
    return {"ti": TaskInstance()}


def reset(context: Any, query: Any, group: Any, **parameters: Any) -> dict[str, Any]:
    """Move a group and the checkpoint of a query that has stopped; return the receipt."""
    parameters = {"quiet_period": 0, **parameters}
    return ResetOffsetsOperator(
        task_id="reset", group_id=group, checkpoint_location=query.location, **parameters
    ).execute(context)


def new_run(context: Any) -> None:
    """Make the next task one of another run, and no retry."""
    context["ti"].run_id += "1"


@pytest.fixture(scope="module")
def recovery_topic(make_topic: Callable[..., str], produce: Callable[..., None]) -> str:
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def pipeline(
    recovery_topic: str, new_query: Any, new_group: Any, commit: Any, committed: Any, context: Any
) -> Pipeline:
    """A recovery's pipeline, at 60 and 62."""
    group = new_group()
    commit(group, recovery_topic, READ)
    query = new_query({recovery_topic: READ})
    return Pipeline(recovery_topic, query, group, committed, type(context["ti"]))
