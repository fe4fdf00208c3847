"""Looks up the states of other tasks in the run of a task."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.model.recovery import Work

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata


def work_between(
    context: Context, first: BaseOperator | None, last: BaseOperator | None, *, without: Collection[str] = ()
) -> Work:
    """Return the tasks between two (``None``: no bound), with their states in this run; no teardowns."""
    after = None if first is None else _flat(first, upstream=False)
    before = None if last is None else _flat(last, upstream=True)
    named = after if before is None else before if after is None else after & before
    dag = (first or last).dag  # type: ignore[union-attr]
    named_tasks = {name: dag.get_task(name) for name in named or () if name not in without}
    tasks = {name: task for name, task in named_tasks.items() if not getattr(task, "is_teardown", False)}
    return Work(_states(context, tasks), {name: _flat(task, upstream=False) for name, task in tasks.items()})


def tasks_that_move(task: BaseOperator) -> list[str]:
    """Return the tasks of a task's DAG that reset or restore: those with ``moves_on_purpose``."""
    if not task.has_dag():  # type: ignore[no-untyped-call]
        return []
    kinds = {each.task_id: getattr(each, "operator_class", type(each)) for each in task.dag.tasks}
    return [name for name, kind in kinds.items() if getattr(kind, "moves_on_purpose", False) is True]


def identities(by: CommitMetadata, task_ids: Collection[str]) -> set[str]:
    """Return the identities in commits of other tasks of a run, mapped with the same index or not mapped."""
    return {
        replace(by, task=name, map_index=index, key="").identity
        for name in task_ids
        for index in {-1, by.map_index}
    }


def _flat(task: Any, *, upstream: bool) -> set[str]:
    return set(task.get_flat_relative_ids(upstream=upstream))


def _states(context: Context, task_ids: Iterable[str]) -> dict[str, list[str | None]]:
    wanted = sorted(task_ids)
    if not wanted:
        return {}
    ti: Any = context["ti"]
    by_run = ti.get_task_states(dag_id=ti.dag_id, task_ids=wanted, run_ids=[ti.run_id])
    found: dict[str, list[str | None]] = {name: [] for name in wanted}
    for key, state in by_run.get(ti.run_id, {}).items():
        # Airflow names an instance of a mapped task "<task id>_<map index>".
        name = key if key in found else key.rpartition("_")[0]
        if name in found:
            found[name].append(None if state is None else str(state))
    return found
