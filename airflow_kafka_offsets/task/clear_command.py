"""The command that clears a task of a run, for errors that ask the user to run the task again."""

from __future__ import annotations

import shlex
from datetime import datetime

from airflow.sdk import DAG


def clear_command(dag: DAG, task_id: str, logical_date: datetime) -> str | None:
    """
    Return the command that clears a task of a run, and the tasks after it.

    ``airflow tasks clear --task-regex`` selects all tasks whose id contains the given text. In Airflow 3 the
    text is not a regular expression, and a text without a match clears nothing and succeeds.

    :return: ``None`` if the command would clear other tasks too.
    """
    selected = {each for each in dag.task_ids if task_id in each}
    if not selected <= {task_id, *dag.get_task(task_id).get_flat_relative_ids(upstream=False)}:
        return None
    at = logical_date.isoformat()
    return shlex.join(["airflow", "tasks", "clear", "-d", "-t", task_id, "-s", at, "-e", at, dag.dag_id])
