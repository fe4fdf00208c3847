"""Distinguishes tries, Clears, iterations and runs of a task by Airflow's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kafka_offsets.model.commit_metadata import RunStart

if TYPE_CHECKING:
    from airflow.sdk import Context


def clear_mark(context: Context) -> int:
    """
    Return a number that changes when a task is cleared, but not on retries, reschedules and deferrals.

    A Clear raises the task's ``max_tries`` above its number of tries (``clear_task_instances`` in Airflow's
    ``models/taskinstance.py``). The run's ``clear_number`` cannot be used: it also changes when another task
    of the run is cleared. If a task is cleared while it runs, Airflow tries it again, and this counts as a
    retry.
    """
    return getattr(context.get("ti"), "max_tries", 0) or 0


def run_start(context: Context) -> RunStart:
    """Return when Airflow started the run; this distinguishes it from a deleted run with the same id."""
    dag_run = context.get("dag_run")
    started = getattr(dag_run, "start_date", None)
    return RunStart(
        None if started is None else int(started.timestamp()), getattr(dag_run, "clear_number", 0) or 0
    )


def map_index(context: Context) -> int:
    """Return the index of a mapped task, ``-1`` for any other task."""
    index = getattr(context.get("ti"), "map_index", None)
    return -1 if index is None else index


def iteration(context: Context) -> int | None:
    """Return the task's iteration in a task loop (Airflow 3.4), ``None`` outside a loop."""
    return getattr(context.get("loop"), "index", None)
