"""Reads a pipeline's past moves from receipts in XCom and from the events of its groups' assets."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.location import is_same_location
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.pipeline import group_uri
from airflow_kafka_offsets.ui.airflow_api import AirflowError, AsUser, RefusedError
from airflow_kafka_offsets.ui.discovery import DagPipelines
from airflow_kafka_offsets.ui.pipelines import NamingTask, Pipeline, operator_kind
from airflow_kafka_offsets.ui.receipts import TaskOutcome, int_or_none
from airflow_kafka_offsets.ui.task_instances import Row, TaskOutcomes, past_instances

# Also the maximum number of a task's instances that are read, each with one request.
MOST_MOVES = 200
_MOST_ASSETS = 500
"""Maximum number of assets whose URI begins with a group's URI."""

_MOVE_NOTHING = ("wait", "drift", "audit", "mirror")

READING_WITHIN = 2.0
"""Seconds for reading receipts."""

_OF = ("dag_id", "run_id", "task_id", "map_index")
"""What identifies a task instance, except in a loop."""

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

    :param ids: the DAGs that Airflow shows to the user.
    :param elsewhere: the pipelines of other DAGs that the user may read.
    """

    ask: AsUser
    outcomes: TaskOutcomes
    pipeline: Pipeline
    ids: frozenset[str]
    elsewhere: Mapping[str, DagPipelines]
    _end: float = field(default_factory=lambda: time.monotonic() + READING_WITHIN)
    _problems: list[str] = field(default_factory=list)
    _unread: int = 0
    """Results that were not read in time: they are read at a later request."""
    _errors: list[AirflowError] = field(default_factory=list)
    """Errors for results that cannot be read now."""

    async def read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the newest moves of a pipeline in order of time, and a sentence for each missing part."""
        events = await self._events()
        found: list[dict[str, Any]] = []
        seen: set[tuple[Any, ...]] = set()
        # The result of a task in another DAG has more information than its event, and only a task with an
        # outlet has an event. The best source is first: a move is shown only once.
        own = await self._read(self.pipeline.tasks, lambda move: is_of_pipeline(move, self.pipeline))
        for moves in (own, await self._read_elsewhere(events)):
            # In a loop, several instances of a task have the same name.
            found += [move_json(move) for move in moves if _key(move) not in seen]
            seen |= set(map(_key, moves))
        kinds: dict[tuple[str | None, str | None], str] = {
            (task.dag_id, task.task_id): operator_kind(task.operator) for task, _ in self.pipeline.tasks
        }
        found += [_event_json(event, kinds) for event in events if _source(event) not in seen]
        if unread := self._unread:
            self._problems.append(
                f"{plural(unread, 'result')} of tasks not read yet: shown when this page refreshes, within "
                "a minute"
            )
        if errors := self._errors:
            self._problems.append(f"cannot read {plural(len(errors), 'result')} of tasks: {errors[0]}")
        return sorted(found, key=itemgetter("at"))[-MOST_MOVES:], self._problems

    async def _read_elsewhere(self, events: Collection[Mapping[str, Any]]) -> list[TaskOutcome]:
        """Return the moves of other DAGs' tasks that made these events, or that name the same pipeline."""
        pipeline, made = self.pipeline, {_source(event) for event in events}
        makers = {(dag_id, task_id) for dag_id, _, task_id, _ in made}
        found = self.elsewhere.values()
        others = [other for each in found for other in each.pipelines if _is_same(other, pipeline)]
        tasks: set[NamingTask] = {
            (task, indexes)
            for other in others
            for task, indexes in other.tasks
            if operator_kind(task.operator) not in _MOVE_NOTHING
            and task.operator != "PlanOffsetWindowOperator"
        }
        tasks |= {
            (task, None) for each in found for task in each.tasks if (task.dag_id, task.task_id) in makers
        }

        def is_its(move: TaskOutcome) -> bool:
            # A commit moves only its groups. The other moves also move the checkpoint.
            of_checkpoint = move.kind in ("failover", "reset", "restore") and _is_at(
                move.checkpoint, pipeline
            )
            return (of_checkpoint or not set(move.groups).isdisjoint(pipeline.group_ids)) and any(
                is_of_pipeline(move, other) for other in others
            )

        return await self._read(tasks, lambda move: _key(move) in made or is_its(move))

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

    async def _events(self) -> list[Mapping[str, Any]]:
        """Return the newest events of the groups' assets that the user may read."""
        found = [event for group_id in self.pipeline.group_ids for event in await self._events_of(group_id)]
        # An event without a DAG was created through Airflow's API. Airflow 3.1 lists the events of all DAGs.
        return [event for event in found if event["source_dag_id"] in {None, *self.ids}]

    async def _events_of(self, group_id: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        try:
            uri = group_uri(self.pipeline.kafka_config_id, group_id)
            # In a pattern, a percent sign and an underscore also match other characters.
            named: dict[str, Any] = {"uri_pattern": uri, "only_active": False}
            for asset in await self.ask.pages(_MOST_ASSETS, "assets", of="assets", **named):
                if asset["uri"] == uri:
                    newest = {"asset_id": asset["id"], "order_by": "-timestamp"}
                    found += await self.ask.pages(MOST_MOVES, "assets", "events", of="asset_events", **newest)
        except (RefusedError, UsageError):
            # A user who may not read assets, or whose group has no asset, still sees the moves of tasks.
            return []
        except AirflowError as error:
            # Airflow 3.3 cannot list the events of an asset while a run that they trigger is queued.
            self._problems.append(f"the events of group {group_id} cannot be read: {error}")
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


def _source(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(event.get(f"source_{name}") for name in _OF)


def _key(move: TaskOutcome) -> tuple[Any, ...]:
    return tuple(getattr(move.instance, name) for name in _OF)


def _event_json(
    event: Mapping[str, Any], kinds: Mapping[tuple[str | None, str | None], str]
) -> dict[str, Any]:
    extra = event["extra"] if isinstance(event["extra"], dict) else {}
    source = dict(zip(_OF, _source(event), strict=True))
    return {
        **EMPTY_MOVE,
        **source,
        "at": datetime.fromisoformat(event["timestamp"]),
        "kind": kinds.get((source["dag_id"], source["task_id"]), "move"),
        "moved_by": int_or_none(extra.get("moved_by")),
    }
