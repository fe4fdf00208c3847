"""Finds the pipelines of a DAG through Airflow's API: in tasks, rendered fields and receipts."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_kafka_offsets.ui.airflow_api import AsUser
from airflow_kafka_offsets.ui.pipelines import (
    DEFAULTS,
    NOT_RUN,
    NamedTask,
    Pipeline,
    check_names,
    listed_pipelines,
    merge_pipelines,
    named_tasks,
    pick_names,
)
from airflow_kafka_offsets.ui.receipts import TaskOutcome
from airflow_kafka_offsets.ui.task_instances import (
    MOST_INDEXES,
    Row,
    TaskOutcomes,
    newest_instances,
    newest_instances_of_dags,
    past_instances,
    with_rendered_fields,
)

T = TypeVar("T")

_MOST_TRIED = 50
"""Maximum number of a task's instances that are searched for its newest result."""


@dataclass
class DagPipelines:
    """The pipelines of a DAG, the tasks that name them, and a sentence for each task with invalid names."""

    tasks: Sequence[NamedTask] = ()
    pipelines: list[Pipeline] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def find_pipelines(ask: AsUser, outcomes: TaskOutcomes, dag_id: str) -> DagPipelines:
    """
    Return the pipelines that tasks of a DAG name.

    The names are in the rendered fields of each task's newest run. If Airflow no longer keeps these fields,
    or a saved plan or a receipt has named the pipeline, the names are taken from the task's receipt.
    """
    return await _find(ask, outcomes, await _tasks(ask, dag_id), {})


async def find_all_pipelines(
    ask: AsUser, outcomes: TaskOutcomes, dag_ids: Iterable[str]
) -> dict[str, DagPipelines | Exception]:
    """Return the pipelines of several DAGs, and an error for each DAG that cannot be read."""
    listed = {dag_id: await _outcome(_tasks(ask, dag_id)) for dag_id in dag_ids}
    tasks = [task for its in listed.values() if not isinstance(its, Exception) for task in its]
    known = await _outcome(newest_instances_of_dags(ask, tasks))
    # A user who may read each of these DAGs may still be refused a request for all DAGs.
    rows = {} if isinstance(known, Exception) else known
    return {
        dag_id: its if isinstance(its, Exception) else await _outcome(_find(ask, outcomes, its, rows))
        for dag_id, its in listed.items()
    }


async def _outcome(asked: Awaitable[T]) -> T | Exception:
    try:
        return await asked
    except Exception as error:  # noqa: BLE001 - a DAG that cannot be read must not hide the others
        return error


async def _tasks(ask: AsUser, dag_id: str) -> list[NamedTask]:
    listed = await ask.get("dags", dag_id, "tasks")
    return named_tasks(dag_id, listed["tasks"]) if listed else []


async def _find(
    ask: AsUser, outcomes: TaskOutcomes, tasks: Sequence[NamedTask], known: Mapping[NamedTask, list[Row]]
) -> DagPipelines:
    if not tasks:
        return DagPipelines()
    found, named = DagPipelines(tasks), []
    instances = await newest_instances(ask, tasks, known)
    for task in tasks:
        rows = instances[task]
        filled = await with_rendered_fields(ask, rows)
        rendered = list(_rendered(task, filled))
        shown = {row["map_index"] for row in filled if rendered}
        if len(rows) >= MOST_INDEXES or 0 < len(shown) < len({row["map_index"] for row in rows}):
            found.problems.append(
                f"DAG {task.dag_id}, task {task.task_id}: only the pipelines of {len(shown or rows):,} map "
                "indexes are shown"
            )
        if not rendered or any(map(_is_named_by_plan, filled)):
            rendered = list(_reported(task, await _newest_moves(ask, outcomes, task, rows))) or rendered
        # A task that has not run yet is on the page too, and one of which Airflow has kept nothing.
        unnamed = {"group_id": "{{ not kept }}" if rows else NOT_RUN}
        for pipeline in rendered or [_pipeline(task, unnamed)]:
            if problem := check_names(pipeline.names):
                found.problems.append(f"DAG {task.dag_id}, task {task.task_id}: {problem}")
            elif pipeline.group_ids or pipeline.checkpoint or pipeline.unresolved_parameters:
                named.append(pipeline)
    found.pipelines = merge_pipelines(named)
    found.problems = list(dict.fromkeys(found.problems))
    return found


async def _newest_moves(
    ask: AsUser, outcomes: TaskOutcomes, task: NamedTask, rows: Sequence[Row]
) -> list[TaskOutcome]:
    """Return the newest move of a task, or of each of its map indexes."""
    mapped = bool(rows) and rows[0]["map_index"] >= 0
    found = []
    for row in rows:
        if (move := await outcomes.read(ask, row)) is not None:
            found.append(move)
            if not mapped:
                return found
    if not found and rows:
        # The newest instances have failed or stored no result. The pipeline still stays on the page.
        for row in await past_instances(ask, task, None, _MOST_TRIED):
            if (move := await outcomes.read(ask, row)) is not None:
                return [move]
    return found


def _rendered(task: NamedTask, rows: Sequence[Row]) -> Iterator[Pipeline]:
    # A task that is not mapped may have been mapped earlier.
    mapped = any(row["map_index"] >= 0 for row in rows if row["dag_run_id"] == rows[0]["dag_run_id"])
    runs: dict[int, str] = {}
    for row in rows:
        fields, index, run_id = row["rendered_fields"], row["map_index"], row["dag_run_id"]
        if not fields or (index >= 0 and not mapped) or runs.setdefault(index, run_id) != run_id:
            continue
        listed = fields.get("pipelines")
        for names in [fields] if listed is None else listed_pipelines(listed):
            yield _pipeline(task, names, row["map_index"])


def _is_named_by_plan(row: Row) -> bool:
    """Return whether a task has taken its names from its plan or receipt when it ran."""
    fields = row["rendered_fields"] or {}
    # An approval also has a plan, but names no group.
    unnamed = "group_id" in fields and fields["group_id"] is None
    return unnamed and any(fields.get(name) for name in ("plan", "receipt"))


def _reported(task: NamedTask, moves: Iterable[TaskOutcome]) -> Iterator[Pipeline]:
    for move in moves:
        index = move.instance.map_index
        for names in move.pipelines:
            yield _pipeline(task, names, index)
        if not move.pipelines and (move.groups or move.checkpoint):
            group_id = move.groups[0] if len(move.groups) == 1 else None
            known = {**move.connections, "group_id": group_id, "checkpoint_location": move.checkpoint or None}
            yield _pipeline(task, known, index)


def _pipeline(task: NamedTask, names: Mapping[str, Any], map_index: int = -1) -> Pipeline:
    indexes = frozenset([map_index]) if map_index >= 0 else None
    return Pipeline(task.dag_id, DEFAULTS | pick_names(names), ((task, indexes),))
