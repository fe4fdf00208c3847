"""Tells a cleared task from one that is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
