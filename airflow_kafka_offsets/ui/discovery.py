"""Finds the pipelines of a DAG in what Airflow's API says: tasks, rendered fields and receipts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.ui.airflow_api import AsUser
from airflow_kafka_offsets.ui.pipelines import (
    DEFAULTS,
    NamedTask,
    Pipeline,
    check_names,
    merged,
    named_tasks,
    only_names,
    read_pipelines,
)
from airflow_kafka_offsets.ui.receipts import Move
from airflow_kafka_offsets.ui.task_instances import Moves, Row, newest, past, with_fields

_LOOKS = ("drift", "wait")
"""Kinds of tasks that move nothing."""

_MOST_TRIED = 50
"""Instances of a task in which its newest result is searched."""


@dataclass
class Found:
    """
    The pipelines of a DAG.

    :param tasks: those that name them.
    :param last_moves: the newest move of each task and map index.
    :param problems: a sentence for each task that names what is no pipeline.
    """

    tasks: list[NamedTask] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    last_moves: list[Move] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def last_move(self, pipeline: Pipeline) -> Move | None:
        """Return the newest move of a pipeline; what only looks, and what was only planned, is none."""
        moves = (
            move
            for move in self.last_moves
            if concerns(move, pipeline) and move.kind not in _LOOKS and not move.plan_only
        )
        return max(moves, key=lambda move: move.instance.at, default=None)

    def with_key(self, key: str) -> Pipeline | None:
        """Return the pipeline with a key, ``None`` if there is none."""
        return next((pipeline for pipeline in self.pipelines if pipeline.key == key), None)


async def find_pipelines(ask: AsUser, moves: Moves, dag_id: str) -> Found:
    """
    Return the pipelines that tasks of a DAG name.

    The newest run of each task says what it names; what Airflow no longer keeps of it, its receipt says.
    """
    listed = await ask.get("dags", dag_id, "tasks")
    tasks = named_tasks(dag_id, listed["tasks"]) if listed else []
    if not tasks:
        return Found()
    found, named = Found(tasks=tasks), []
    instances = await newest(ask, tasks)
    for task in tasks:
        rows = instances[task.task_id]
        rendered = list(_rendered(task, await with_fields(ask, rows)))
        # What only looks moves nothing.
        newest_moves = [] if rendered and task.kind in _LOOKS else await _newest_moves(ask, moves, task, rows)
        found.last_moves += newest_moves
        for pipeline in rendered or list(_reported(task, newest_moves)) or [_open(task)]:
            if problem := check_names(pipeline.names):
                found.problems.append(f"DAG {dag_id}, task {task.task_id}: {problem}")
            elif pipeline.group_ids or pipeline.checkpoint or pipeline.unresolved:
                named.append(pipeline)
    found.pipelines = merged(named)
    found.problems = list(dict.fromkeys(found.problems))
    return found


async def _newest_moves(ask: AsUser, moves: Moves, task: NamedTask, rows: Sequence[Row]) -> list[Move]:
    """Return the newest move of a task, or of each of its map indexes."""
    mapped = bool(rows) and rows[0]["map_index"] >= 0
    found = []
    for row in rows:
        if (move := await moves.of(ask, row, task.kind)) is not None:
            found.append(move)
            if not mapped:
                return found
    if not found and rows:
        # The newest have failed, or left nothing.
        for row in (await past(ask, task, None, _MOST_TRIED))[len(rows) :]:
            if (move := await moves.of(ask, row, task.kind)) is not None:
                return [move]
    return found


def concerns(move: Move, pipeline: Pipeline) -> bool:
    """Whether a move is one of a pipeline: of its tasks and indexes, about its groups and checkpoint."""
    its = {task.task_id: indexes for task, indexes in pipeline.tasks}
    instance = move.instance
    if instance.dag_id != pipeline.dag_id or instance.task_id not in its:
        return False
    indexes = its[instance.task_id]
    if indexes is not None and instance.map_index not in indexes:
        return False
    if move.groups and set(move.groups).isdisjoint(pipeline.group_ids):
        return False
    if move.checkpoint is not None and pipeline.checkpoint is not None:
        return move.checkpoint.rstrip("/") == pipeline.checkpoint.rstrip("/")
    # What names neither is of whatever its task names.
    return bool(move.groups) or move.checkpoint is None


def _rendered(task: NamedTask, rows: Sequence[Row]) -> Iterator[Pipeline]:
    run_id = next((row["dag_run_id"] for row in rows if row["rendered_fields"]), None)
    for row in rows:
        fields = row["rendered_fields"]
        if row["dag_run_id"] != run_id or not fields:
            continue
        listed = fields.get("pipelines")
        for names in [fields] if listed is None else read_pipelines(listed):
            yield _pipeline(task, names, "run", row["map_index"])


def _reported(task: NamedTask, moves: Iterable[Move]) -> Iterator[Pipeline]:
    for move in moves:
        index = move.instance.map_index
        for names in move.named:
            yield _pipeline(task, names, "receipt", index)
        if not move.named and (move.groups or move.checkpoint):
            known: dict[str, Any] = {"group_id": move.groups[0]} if len(move.groups) == 1 else {}
            known |= {"checkpoint_location": move.checkpoint} if move.checkpoint else {}
            yield _pipeline(task, known, "receipt", index)


def _open(task: NamedTask) -> Pipeline:
    """Return the pipeline of a task that has not run: it shows that there is something."""
    return _pipeline(task, {"group_id": "{{ not known yet }}"}, "dag")


def _pipeline(task: NamedTask, names: Mapping[str, Any], found_in: str, map_index: int = -1) -> Pipeline:
    indexes = frozenset([map_index]) if map_index >= 0 else None
    return Pipeline(task.dag_id, DEFAULTS | only_names(names), ((task, indexes),), frozenset([found_in]))
