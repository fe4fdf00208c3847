"""Finds the pipelines of DAGs in what Airflow knows: serialized DAGs, rendered fields and receipts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.ui.pipelines import (
    DEFAULTS,
    NamedTask,
    Pipeline,
    check_names,
    merged,
    only_names,
    read_pipelines,
    unresolved,
)
from airflow_kafka_offsets.ui.receipts import Move
from airflow_kafka_offsets.ui.results import newest_moves
from airflow_kafka_offsets.ui.store import TaskName, all_named_tasks, rendered_names

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_LOOKS = ("drift", "wait")
"""Kinds of tasks that move nothing."""


@dataclass
class Found:
    """
    The pipelines of some DAGs.

    :param last_moves: the newest move of each task and map index.
    :param problems: for each task that names what is no pipeline: its DAG, and a sentence.
    """

    pipelines: list[Pipeline] = field(default_factory=list)
    last_moves: list[Move] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)

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


def find_pipelines(session: Session, dag_ids: Collection[str]) -> Found:
    """
    Return the pipelines that tasks of some DAGs name.

    The DAG's file says most; the newest run what templates and mapped tasks name; receipts the rest.
    """
    tasks = {(task.dag_id, task.task_id): task for task in all_named_tasks(session, dag_ids)}
    open_tasks = [name for name, task in tasks.items() if not task.complete]
    found = Found(last_moves=newest_moves(session, {name: task.kind for name, task in tasks.items()}))
    rendered: dict[TaskName, list[tuple[int, Mapping[str, Any]]]] = {}
    for name, index, fields in rendered_names(session, open_tasks):
        rendered.setdefault(name, []).append((index, fields))
    reported: dict[TaskName, list[Move]] = {}
    for move in found.last_moves:
        reported.setdefault((move.instance.dag_id, move.instance.task_id), []).append(move)
    named: list[Pipeline] = []
    for name, task in tasks.items():
        for pipeline in _pipelines_of(task, rendered.get(name, ()), reported.get(name, ())):
            if problem := check_names(pipeline.names):
                found.problems.append((task.dag_id, f"DAG {task.dag_id}, task {task.task_id}: {problem}"))
            elif pipeline.group_ids or pipeline.checkpoint or pipeline.unresolved:
                named.append(pipeline)
    found.pipelines = merged(named)
    found.problems = list(dict.fromkeys(found.problems))
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


def _pipelines_of(
    task: NamedTask, rendered: Iterable[tuple[int, Mapping[str, Any]]], moves: Iterable[Move]
) -> Iterator[Pipeline]:
    literal = [_pipeline(task, names, "dag", indexes) for names, indexes in task.entries]
    if task.complete:
        yield from literal
        return
    by_run = list(_rendered(task, rendered)) or list(_reported(task, moves))
    yield from literal
    yield from by_run
    if not (literal or by_run):
        # It shows that there is something, and which of its names no run has rendered yet.
        open_names = dict(task.names)
        if task.mapped and not unresolved(task.names):
            open_names["group_id"] = "{{ mapped }}"
        yield _pipeline(task, open_names, "dag")


def _rendered(task: NamedTask, rendered: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Pipeline]:
    for index, fields in rendered:
        listed = fields.get("pipelines")
        # Who lists pipelines names none beside them.
        several, others = ([fields], task.names) if listed is None else (read_pipelines(listed), DEFAULTS)
        for names in several:
            indexes = frozenset([index]) if task.mapped else None
            yield _pipeline(task, {**others, **only_names(names)}, "run", indexes)


def _reported(task: NamedTask, moves: Iterable[Move]) -> Iterator[Pipeline]:
    for move in moves:
        indexes = frozenset([move.instance.map_index]) if task.mapped else None
        for names in move.named:
            yield _pipeline(task, only_names(names), "receipt", indexes)
        if not move.named and (move.groups or move.checkpoint):
            group_id = task.names.get("group_id")
            known: dict[str, Any] = {"group_id": move.groups[0]} if len(move.groups) == 1 else {}
            known |= {"checkpoint_location": move.checkpoint} if move.checkpoint else {}
            if len(move.groups) > 1 and isinstance(group_id, Mapping):
                known["group_id"] = group_id
            yield _pipeline(task, {**task.names, **known}, "receipt", indexes)


def _pipeline(
    task: NamedTask, names: Mapping[str, Any], found_in: str, indexes: frozenset[int] | None = None
) -> Pipeline:
    return Pipeline(task.dag_id, dict(names), ((task, indexes),), frozenset([found_in]))
