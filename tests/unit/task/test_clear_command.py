"""The command that an error prints clears a task and the tasks after it, and no other task."""

import shlex
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import BaseOperator

from airflow_kafka_offsets.task.run_tasks import clear_command

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)


def chain(*task_ids: str) -> DAG:
    with DAG("hourly") as dag:
        tasks = [BaseOperator(task_id=task_id) for task_id in task_ids]
        for first, second in pairwise(tasks):
            first >> second
    return dag


def cleared(dag: DAG, command: str) -> set[str]:
    """Return the tasks that Airflow selects for a command."""
    serialization: Any = pytest.importorskip("airflow.serialization.serialized_objects")
    kind = getattr(serialization, "DagSerialization", None) or serialization.SerializedDAG
    arguments = shlex.split(command)
    named = arguments[arguments.index("-t") + 1]
    selected = kind.from_dict(kind.to_dict(dag)).partial_subset(
        named, include_downstream=True, include_upstream=False
    )
    return set(selected.task_ids)


def test_airflow_clears_the_job_and_the_tasks_after_it():
    dag = chain("plan", "load", "audit", "load_report", "commit")
    command = clear_command(dag, "load", AT)
    assert command is not None
    assert cleared(dag, command) == {"load", "audit", "load_report", "commit"}
    assert command.endswith("-s 2026-03-01T00:00:00+00:00 -e 2026-03-01T00:00:00+00:00 hourly")


def test_a_command_that_would_clear_an_earlier_task_too_is_not_given():
    assert clear_command(chain("preload", "plan", "load", "audit"), "load", AT) is None
