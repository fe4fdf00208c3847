"""Queries of XCom: what the newest runs of tasks have left there, read once and kept in short."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from sqlalchemy import and_, func, or_, select, tuple_, union_all

from airflow_kafka_offsets.ui.receipts import Instance, Move, own_value, read_move
from airflow_kafka_offsets.ui.store import MOST_ROWS, RESULT, Kept, TaskName

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

NEWEST_RUNS = 50
"""Runs of a DAG in which the newest result of a task is searched first; a task without one there has few."""

MOST_RUNS = 1_000
"""Runs of a DAG that its history is about, and as many that were retried or cleared since."""

_TOGETHER = 10
"""Selects in one statement: SQLite takes 32,766 parameters, and each may name many runs."""

_VALUES = 20
"""Values in one statement: a receipt of 2,000 partitions has 180 kB."""

_moves = Kept()
_reading = Lock()


class Budget:
    """
    Time for reading values; those that take longer are read when they are asked for again.

    :param seconds: for all of them together.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.unread = 0
        """Values that were not read in time."""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end - time.monotonic())


def newest_moves(session: Session, tasks: Mapping[TaskName, str]) -> list[Move]:
    """Return the newest move of each task and map index; ``tasks`` says what their moves are called."""
    runs = _runs_of(session, tasks, NEWEST_RUNS)
    rows = _newest_first(session, [_newest(_results(dag_id, *each)) for dag_id, each in runs.items()])
    left: dict[str, list[str]] = {}
    for dag_id, task_id in tasks.keys() - {(row.dag_id, row.task_id) for row in rows}:
        left.setdefault(dag_id, []).append(task_id)
    rows += _newest_first(session, [_newest(_results(dag_id, None, names)) for dag_id, names in left.items()])
    return _read_moves(session, rows[:MOST_ROWS], tasks, None)


def moves_of(
    session: Session,
    tasks: Mapping[TaskName, str],
    indexes: Mapping[TaskName, Collection[int] | None],
    most: int,
    budget: Budget,
) -> list[Move]:
    """
    Return the newest moves of some tasks, the newest first.

    :param indexes: the map indexes of each task, ``None`` for all.
    """
    selects = []
    for dag_id, (runs, task_ids) in _runs_of(session, tasks, MOST_RUNS).items():
        mine = [
            and_(XComModel.task_id == task_id, *([] if kept is None else [XComModel.map_index.in_(kept)]))
            for task_id in task_ids
            for kept in [indexes[dag_id, task_id]]
        ]
        wanted = _results(dag_id, runs, task_ids).where(or_(*mine)).order_by(XComModel.timestamp.desc())
        selects.append(_with_states(wanted.limit(most).subquery()))
    rows = _newest_first(session, selects)[:most]
    return _read_moves(session, rows, tasks, budget)


def _runs_of(session: Session, tasks: Iterable[TaskName], most: int) -> dict[str, tuple[set[str], list[str]]]:
    """Return of each DAG the newest runs, with those that were retried or cleared since, and its tasks."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for dag_id, task_id in tasks:
        found.setdefault(dag_id, (set(), []))[1].append(task_id)
    if not found:
        return found
    again = (
        select(DagRun.dag_id, DagRun.run_id, DagRun.id)
        .join(
            TaskInstanceHistory,
            and_(TaskInstanceHistory.dag_id == DagRun.dag_id, TaskInstanceHistory.run_id == DagRun.run_id),
        )
        .where(
            TaskInstanceHistory.dag_id.in_(list(found)),
            TaskInstanceHistory.task_id.in_({task_id for _, task_id in tasks}),
        )
        .distinct()
        .order_by(DagRun.id.desc())
        .limit(MOST_RUNS)
    )
    selects = [
        select(
            select(DagRun.dag_id, DagRun.run_id)
            .where(DagRun.dag_id == dag_id)
            .order_by(DagRun.id.desc())
            .limit(most)
            .subquery()
        )
        for dag_id in found
    ]
    for row in (*session.execute(again), *_together(session, selects)):
        found[row.dag_id][0].add(row.run_id)
    return found


def _together(session: Session, selects: Sequence[Any]) -> Iterator[Any]:
    """Return the rows of selects, few statements for many of them."""
    for start in range(0, len(selects), _TOGETHER):
        yield from session.execute(union_all(*selects[start : start + _TOGETHER]))


def _newest_first(session: Session, selects: Sequence[Any]) -> list[Any]:
    return sorted(_together(session, selects), key=lambda row: row.timestamp, reverse=True)


def _newest(results: Any) -> Any:
    """Return the select of the newest of a DAG's results of each task and map index."""
    place = func.row_number().over(
        partition_by=(XComModel.task_id, XComModel.map_index), order_by=XComModel.timestamp.desc()
    )
    ranked = results.add_columns(place.label("place")).subquery()
    return _with_states(ranked).where(ranked.c.place == 1)


def _results(dag_id: str, runs: Collection[str] | None, task_ids: Collection[str]) -> Any:
    """
    Return the select of a DAG's results, without their values, which may be large.

    XCom has an index of DAG, task and run. By the run's number SQLite would read all that is called
    ``return_value``.

    :param runs: ``None`` for all of them.
    """
    return select(
        XComModel.dag_run_id,
        XComModel.dag_id,
        XComModel.run_id,
        XComModel.task_id,
        XComModel.map_index,
        XComModel.timestamp,
    ).where(
        XComModel.dag_id == dag_id,
        XComModel.task_id.in_(task_ids),
        XComModel.key == RESULT,
        *([] if runs is None else [XComModel.run_id.in_(runs)]),
    )


def _with_states(results: Any) -> Any:
    """Return the select of results with the try and the state that their task instances have now."""
    of, found = TaskInstance, results.c
    instance = and_(
        *(getattr(of, name) == found[name] for name in ("dag_id", "task_id", "run_id", "map_index"))
    )
    columns = [column for column in found if column.name != "place"]
    return select(*columns, of.try_number, of.state).select_from(results).outerjoin(of, instance)


def _read_moves(
    session: Session, rows: Iterable[Any], tasks: Mapping[TaskName, str], budget: Budget | None
) -> list[Move]:
    """
    Return the moves of results; a value is read from the database once.

    Viewers who ask at the same time read one after the other, so that the second finds what the first read.
    """
    keys = {(row.dag_run_id, row.task_id, row.map_index, row.timestamp): row for row in rows}
    moves = _moves.known(keys)
    if len(moves) < len(keys) and _reading.acquire(timeout=budget.left if budget else -1):
        try:
            moves = _moves.known(keys)
            unknown = [key for key in keys if key not in moves]
            while unknown and (budget is None or budget.left):
                chunk, unknown = unknown[:_VALUES], unknown[_VALUES:]
                found = _digest(session, {key: keys[key] for key in chunk}, tasks)
                _moves.put(found)
                moves |= found
        finally:
            _reading.release()
    if budget:
        budget.unread += len(keys) - len(moves)
    # The states are those that the task instances have now.
    return [replace(move, instance=_instance(row)) for key, row in keys.items() if (move := moves.get(key))]


def _digest(
    session: Session, rows: Mapping[Any, Any], tasks: Mapping[TaskName, str]
) -> dict[Any, Move | None]:
    """Return what the values of some results say in short, ``None`` for one of others."""
    keys = {key[:3]: key for key in rows}
    values = session.execute(
        select(XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.value).where(
            tuple_(XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.key).in_(
                [(*key, RESULT) for key in keys]
            )
        )
    )
    found: dict[Any, Move | None] = dict.fromkeys(rows)
    for value in values:
        key = keys[value.dag_run_id, value.task_id, value.map_index]
        row, own = rows[key], own_value(value.value)
        if own is not None:
            found[key] = read_move(_instance(row), tasks[row.dag_id, row.task_id], own)
    return found


def _instance(row: Any) -> Instance:
    return Instance(
        row.dag_id, row.run_id, row.task_id, row.map_index, row.timestamp, row.try_number, row.state
    )
