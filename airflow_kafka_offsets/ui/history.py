"""Reads a pipeline's past moves from receipts in XCom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import Any

from airflow_kafka_offsets.model.location import is_same_location
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.ui.airflow_api import AirflowError, AsUser
from airflow_kafka_offsets.ui.discovery import DagPipelines
from airflow_kafka_offsets.ui.pipelines import NamingTask, Pipeline, operator_kind
from airflow_kafka_offsets.ui.receipts import TaskOutcome
from airflow_kafka_offsets.ui.task_instances import Row, TaskOutcomes, past_instances

# Also the maximum number of a task's instances that are read, each with one request.
MOST_MOVES = 200

_MOVE_NOTHING = ("wait", "drift", "audit", "mirror")

READING_WITHIN = 2.0
"""Seconds for reading receipts."""

EMPTY_MOVE: Mapping[str, Any] = {
    **dict.fromkeys(("at", "kind", "dag_id", "run_id", "task_id", "map_index", "try_number", "state")),
    **dict.fromkeys(("moved_by", "lag", "offset", "log_end", "checkpoint", "over", "verdict", "tool")),
    "plan_only": False,
}
"""
The keys of a move in the routes' answers: those of a task's outcome. A move by a command has its tool, and
the sum of the checkpoint's offsets.
"""


@dataclass
class PipelineHistory:
    """
    Reads the past moves of one pipeline.

    :param elsewhere: the pipelines of other DAGs that the user may read.
    """

    ask: AsUser
    outcomes: TaskOutcomes
    pipeline: Pipeline
    elsewhere: Mapping[str, DagPipelines]
    _end: float = field(default_factory=lambda: time.monotonic() + READING_WITHIN)
    _unread: int = 0
    """Results that were not read in time: they are read at a later request."""
    _errors: list[AirflowError] = field(default_factory=list)
    """Errors for results that cannot be read now."""

    async def read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the newest moves of a pipeline in order of time, and a sentence for each missing part."""
        own = await self._read(self.pipeline.tasks, lambda move: is_of_pipeline(move, self.pipeline))
        found = [move_json(move) for move in (*own, *await self._read_elsewhere())]
        problems = []
        if unread := self._unread:
            problems.append(
                f"{plural(unread, 'result')} of tasks not read yet: shown when this page refreshes, within "
                "a minute"
            )
        if errors := self._errors:
            problems.append(f"cannot read {plural(len(errors), 'result')} of tasks: {errors[0]}")
        return sorted(found, key=itemgetter("at"))[-MOST_MOVES:], problems

    async def _read_elsewhere(self) -> list[TaskOutcome]:
        """Return the moves by tasks of other DAGs that name the same pipeline."""
        pipeline = self.pipeline
        named = [other for each in self.elsewhere.values() for other in each.pipelines]
        others = [other for other in named if _is_same(other, pipeline)]
        tasks: set[NamingTask] = {
            (task, indexes)
            for other in others
            for task, indexes in other.tasks
            if operator_kind(task.operator) not in _MOVE_NOTHING
            and task.operator != "PlanOffsetWindowOperator"
        }

        def is_its(move: TaskOutcome) -> bool:
            # A commit moves only its groups. The other moves also move the checkpoint.
            of_checkpoint = move.kind in ("failover", "reset", "restore") and _is_at(
                move.checkpoint, pipeline
            )
            return (of_checkpoint or not set(move.groups).isdisjoint(pipeline.group_ids)) and any(
                is_of_pipeline(move, other) for other in others
            )

        return await self._read(tasks, is_its)

    async def _read(
        self, tasks: Iterable[NamingTask], wanted: Callable[[TaskOutcome], bool]
    ) -> list[TaskOutcome]:
        """Return the newest moves of given tasks, the newest first."""
        rows: dict[str, Row] = {}
        for task, indexes in tasks:
            instances = await past_instances(self.ask, task, indexes, MOST_MOVES)
            rows |= {row["id"]: row for row in instances}
        found: list[TaskOutcome] = []
        for row in sorted(rows.values(), key=lambda row: row["start_date"] or "", reverse=True):
            if time.monotonic() >= self._end and not self.outcomes.is_known(row):
                self._unread += 1
                continue
            try:
                move = await self.outcomes.read(self.ask, row)
            except AirflowError as error:
                self._errors.append(error)
                continue
            if move is not None and wanted(move):
                found.append(_without_other_totals(move, self.pipeline))
            if len(found) == MOST_MOVES:
                break
        return found


def is_of_pipeline(move: TaskOutcome, pipeline: Pipeline) -> bool:
    """Return whether a move is a pipeline's: by task, map index, connection, groups and checkpoint."""
    its = {task.task_id: indexes for task, indexes in pipeline.tasks}
    instance = move.instance
    if instance.dag_id != pipeline.dag_id or instance.task_id not in its:
        return False
    indexes = its[instance.task_id]
    if indexes is not None and instance.map_index not in indexes:
        return False
    if move.groups and set(move.groups).isdisjoint(pipeline.group_ids):
        return False
    # A failover commits on the cluster to which it leads the pipeline.
    if move.kind != "failover" and not _is_on_cluster(move, pipeline):
        return False
    if move.checkpoint is not None and pipeline.checkpoint is not None:
        return _is_at(move.checkpoint, pipeline)
    # A move without groups and checkpoint belongs to the pipeline that its task names.
    return bool(move.groups) or move.checkpoint is None


def _is_same(other: Pipeline, pipeline: Pipeline) -> bool:
    return other.kafka_config_id == pipeline.kafka_config_id and (
        not set(other.group_ids).isdisjoint(pipeline.group_ids) or _is_at(other.checkpoint, pipeline)
    )


def _is_on_cluster(move: TaskOutcome, pipeline: Pipeline) -> bool:
    """Return whether a move was made with the pipeline's connection; a reading names none."""
    return move.connections.get("kafka_config_id", pipeline.kafka_config_id) == pipeline.kafka_config_id


def _is_at(checkpoint: str | None, pipeline: Pipeline) -> bool:
    its = pipeline.checkpoint
    return checkpoint is not None and its is not None and is_same_location(checkpoint, its)


def _without_other_totals(move: TaskOutcome, pipeline: Pipeline) -> TaskOutcome:
    if set(move.groups) <= set(pipeline.group_ids) and _is_on_cluster(move, pipeline):
        return move
    # The totals of the move include other groups, or are those of another cluster.
    return replace(move, moved_by=None, lag=None, offset=None, log_end=None)


def move_json(move: TaskOutcome) -> dict[str, Any]:
    """Return a move for the routes' answers."""
    shown = ["kind", "moved_by", "over", "plan_only", "verdict"]
    # A receipt is stored before the first write: if the task failed, it only shows the plan.
    if move.verified or move.plan_only or move.instance.state == "success":
        shown += ["lag", "offset", "log_end"]
    return {**EMPTY_MOVE, **asdict(move.instance), **{name: getattr(move, name) for name in shown}}
