"""Tells tries, Clears, iterations and runs of a task apart, by what Airflow's context says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kafka_offsets.model.commit_metadata import RunStart

if TYPE_CHECKING:
    from airflow.sdk import Context


def clear_mark(context: Context) -> int:
    """
    Return a number that stays over a task's retries, reschedules and deferrals, and changes when it is
    cleared.

    A Clear raises the task's ``max_tries`` above the tries it had (``clear_task_instances`` in Airflow's
    ``models/taskinstance.py``). The run's ``clear_number`` would also change when another task of the run is
    cleared. A task that is cleared while it runs is tried again, and counts as a retry.
    """
    return getattr(context.get("ti"), "max_tries", 0) or 0


def run_start(context: Context) -> RunStart:
    """Return when Airflow started the run, which tells it from a deleted run with the same id."""
    dag_run = context.get("dag_run")
    started = getattr(dag_run, "start_date", None)
    return RunStart(
        None if started is None else int(started.timestamp()), getattr(dag_run, "clear_number", 0) or 0
    )


def map_index(context: Context) -> int:
    """Return the index of a mapped task, ``-1`` for another one."""
    index = getattr(context.get("ti"), "map_index", None)
    return -1 if index is None else index


def iteration(context: Context) -> int | None:
    """Return the iteration of the task loop that a task is in (Airflow 3.4), ``None`` outside a loop."""
    return getattr(context.get("loop"), "index", None)
