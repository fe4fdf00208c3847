"""Distinguishes tries, Clears, iterations and runs of a task by Airflow's context, for commits and memory."""

from __future__ import annotations

import time

from airflow.sdk import Context

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest


def clear_mark(context: Context) -> int:
    """
    Return a number that changes when a task is cleared, but not on retries, reschedules and deferrals.

    A Clear sets the task's ``max_tries`` to its tries plus its ``retries`` (``clear_task_instances`` in
    Airflow's ``models/taskinstance.py``; for a running task, the scheduler does so when the task has ended).
    If the DAG's ``retries`` was lowered by exactly the number of tries, the Clear counts as a retry. The
    run's ``clear_number`` cannot be used: it also changes when another task of the run is cleared. Neither
    can ``retries``: it may be changed between two tries, and a retry must not move twice.
    """
    return getattr(context.get("ti"), "max_tries", 0) or 0


def was_cleared(context: Context, retries: int | None) -> bool:
    """
    Return whether a task was cleared in this run, see :func:`clear_mark`.

    A Clear gives a task as many more tries as it has had. Any other number shows that the task's ``retries``
    were changed since its first try.
    """
    more = clear_mark(context) - (retries or 0)
    return 0 < more < (getattr(context.get("ti"), "try_number", None) or 1)


def map_index(context: Context) -> int:
    """Return the index of a mapped task, ``-1`` for any other task."""
    index = getattr(context.get("ti"), "map_index", None)
    return -1 if index is None else index


def iteration(context: Context) -> int | None:
    """Return the task's iteration in a task loop (Airflow 3.4), ``None`` outside a loop."""
    return getattr(context.get("loop"), "index", None)


def commit_metadata(context: Context) -> CommitMetadata:
    """Return the metadata in which a commit of this task run records its origin."""
    ti, dag_run = context.get("ti"), context.get("dag_run")
    dag, run, task = (getattr(ti, name, "") for name in ("dag_id", "run_id", "task_id"))
    index, loop = map_index(context), iteration(context)
    started = getattr(dag_run, "start_date", None)
    started_at = None if started is None else int(started.timestamp())
    # A retry has the same token. These have a different token: another iteration of a task loop, a run that
    # was deleted and created again, and a task that was cleared. If a loop was cleared, only the region id of
    # its iterations changes.
    region = getattr(ti, "region_id", None)
    token = digest(dag, run, task, index, loop, region, clear_mark(context), started_at, length=12)
    return CommitMetadata(
        dag=dag,
        run=run,
        task=task,
        map_index=index,
        iteration=loop,
        user=getattr(dag_run, "triggering_user_name", None) or "",
        token=token if ti is not None else "",
        started=started_at,
        clears=getattr(dag_run, "clear_number", None) or None,
        try_number=getattr(ti, "try_number", None),
        at=int(time.time()),
    )
