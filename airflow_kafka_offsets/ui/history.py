"""What moved a pipeline in the past: receipts in XCom, and the events of its groups' assets."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.pipeline import group_uri
from airflow_kafka_offsets.ui.discovery import concerns
from airflow_kafka_offsets.ui.pipelines import Pipeline, check_names
from airflow_kafka_offsets.ui.receipts import Move
from airflow_kafka_offsets.ui.responses import MoveResponse
from airflow_kafka_offsets.ui.results import Budget, moves_of
from airflow_kafka_offsets.ui.store import all_named_tasks, group_events

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

MOST_MOVES = 200
_MOST_READ = 600
_MOVE_NOTHING = ("wait", "drift")

READING_WITHIN = 2.0
"""Seconds for reading receipts."""

_UNREAD = "results of tasks are not read yet: they appear when this page asks again, within a minute"


class Readable(Protocol):
    """Tells which DAGs a user may read."""

    def ids(self) -> set[str]:
        """Return the DAGs that the user may read."""

    def with_xcom(self, dag_ids: Collection[str]) -> set[str]:
        """Return those of some DAGs of which the user may read the XCom."""


def moves(
    session: Session, pipeline: Pipeline, readable: Readable, within: float = READING_WITHIN
) -> tuple[list[MoveResponse], list[str]]:
    """
    Return the newest moves of a pipeline, the oldest first, and a sentence if some are missing.

    :param within: seconds for reading receipts; the next time those are read that take longer.
    """
    budget = Budget(within)
    tasks = {(task.dag_id, task.task_id): task.kind for task, _ in pipeline.tasks}
    indexes = {(task.dag_id, task.task_id): kept for task, kept in pipeline.tasks}
    read = moves_of(session, tasks, indexes, _MOST_READ, budget)
    own = map(response, islice((move for move in read if concerns(move, pipeline)), MOST_MOVES))
    found = {(each.dag_id, each.run_id, each.task_id, each.map_index): each for each in own}
    uris = list(_uris(pipeline))
    events = [event for _, event in group_events(session, uris, MOST_MOVES)]
    visible = readable.with_xcom({event.source_dag_id for event in events if event.source_dag_id})
    # An event without a DAG came through Airflow's API.
    shown = [event for event in events if event.source_dag_id is None or event.source_dag_id in visible]
    # What a task of another DAG left says more than its event, and without an outlet there is no event.
    elsewhere = (
        *islice(_elsewhere(session, pipeline, shown, budget), MOST_MOVES),
        *islice(_named_elsewhere(session, pipeline, readable, budget), MOST_MOVES),
    )
    for each in map(response, elsewhere):
        found.setdefault((each.dag_id, each.run_id, each.task_id, each.map_index), each)
    for event in shown:
        move = _of_event(event, tasks)
        found.setdefault((move.dag_id, move.run_id, move.task_id, move.map_index), move)
    problems = [f"{budget.unread:,} {_UNREAD}"] if budget.unread else []
    return sorted(found.values(), key=lambda move: move.at)[-MOST_MOVES:], problems


def _elsewhere(
    session: Session, pipeline: Pipeline, events: Collection[Any], budget: Budget
) -> Iterator[Move]:
    """Return the moves behind the events of other DAGs' tasks."""
    sources = {
        (event.source_dag_id, event.source_task_id)
        for event in events
        if event.source_dag_id != pipeline.dag_id
    }
    named = all_named_tasks(session, {dag_id for dag_id, _ in sources if dag_id is not None})
    kinds = {name: task.kind for task in named if (name := (task.dag_id, task.task_id)) in sources}
    known = {
        (event.source_dag_id, event.source_run_id, event.source_task_id, event.source_map_index)
        for event in events
    }
    for move in moves_of(session, kinds, dict.fromkeys(kinds), _MOST_READ, budget):
        of = move.instance
        if (of.dag_id, of.run_id, of.task_id, of.map_index) not in known:
            continue
        yield _part(move, pipeline)


def _named_elsewhere(
    session: Session, pipeline: Pipeline, readable: Readable, budget: Budget
) -> Iterator[Move]:
    """Return the moves of other DAGs' tasks that name the same pipeline as literals."""
    others = [
        other
        for task in all_named_tasks(session, readable.ids() - {pipeline.dag_id})
        if task.kind not in _MOVE_NOTHING and task.operator != "PlanOffsetWindowOperator"
        for names, indexes in task.entries
        if check_names(names) is None
        and _is_same(other := Pipeline(task.dag_id, names, ((task, indexes),)), pipeline)
    ]
    visible = readable.with_xcom({other.dag_id for other in others}) if others else set()
    others = [other for other in others if other.dag_id in visible]
    kinds = {(task.dag_id, task.task_id): task.kind for other in others for task, _ in other.tasks}
    for move in moves_of(session, kinds, dict.fromkeys(kinds), _MOST_READ, budget):
        # A commit moves its groups only, a reset and a restore the checkpoint too.
        of_checkpoint = move.kind in ("reset", "restore") and _is_at(move.checkpoint, pipeline)
        if (of_checkpoint or not set(move.groups).isdisjoint(pipeline.group_ids)) and any(
            concerns(move, other) for other in others
        ):
            yield _part(move, pipeline)


def _is_same(other: Pipeline, pipeline: Pipeline) -> bool:
    return other.kafka_config_id == pipeline.kafka_config_id and (
        not set(other.group_ids).isdisjoint(pipeline.group_ids) or _is_at(other.checkpoint, pipeline)
    )


def _is_at(checkpoint: str | None, pipeline: Pipeline) -> bool:
    its = pipeline.checkpoint
    return None not in (checkpoint, its) and str(checkpoint).rstrip("/") == str(its).rstrip("/")


def _part(move: Move, pipeline: Pipeline) -> Move:
    if set(move.groups) <= set(pipeline.group_ids):
        return move
    # Its totals are of other groups too.
    return replace(move, records=None, lag=None, offset=None, log_end=None)


def response(move: Move) -> MoveResponse:
    """Return a move as the routes do."""
    of = move.instance
    state = None if of.state is None else str(of.state)
    # A receipt is stored before the first write: of a task that failed it says what was meant.
    done = move.verified or move.plan_only or state == "success"
    return MoveResponse(
        at=of.at,
        kind=move.kind,
        dag_id=of.dag_id,
        run_id=of.run_id,
        task_id=of.task_id,
        map_index=of.map_index,
        try_number=of.try_number,
        records=move.records,
        lag=move.lag if done else None,
        offset=move.offset if done else None,
        log_end=move.log_end if done else None,
        over=move.over,
        plan_only=move.plan_only,
        state=state,
    )


def _uris(pipeline: Pipeline) -> Iterator[str]:
    for group_id in pipeline.group_ids:
        with suppress(UsageError):
            yield group_uri(pipeline.kafka_config_id, group_id)


def _of_event(event: Any, kinds: Any) -> MoveResponse:
    extra = event.extra if isinstance(event.extra, dict) else {}
    records = extra.get("records")
    return MoveResponse(
        at=event.timestamp,
        kind=kinds.get((event.source_dag_id, event.source_task_id), "commit"),
        dag_id=event.source_dag_id,
        run_id=event.source_run_id,
        task_id=event.source_task_id,
        map_index=event.source_map_index,
        records=records if isinstance(records, int) and not isinstance(records, bool) else None,
    )
