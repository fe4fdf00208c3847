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
from sqlalchemy import and_, bindparam, func, or_, select

from airflow_kafka_offsets.ui.receipts import Instance, Move, own_value, read_move
from airflow_kafka_offsets.ui.store import MOST_ROWS, RESULT, Kept, TaskName

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

NEWEST_RUNS = 50
"""Runs of a DAG in which the newest result of a task is searched first; a task without one there has few."""

MOST_RUNS = 1_000
"""Runs of a DAG that its history is about, and as many that were retried or cleared since."""

_VALUES = 20
"""Values in one statement: a receipt of 2,000 partitions has 180 kB."""

_moves = Kept()
_reading = Lock()

_OF = ("dag_id", "task_id", "run_id", "map_index")

_RUNS = (
    select(DagRun.run_id)
    .where(DagRun.dag_id == bindparam("dag"))
    .order_by(DagRun.id.desc())
    .limit(bindparam("most"))
)
_RUN_AGAIN = (
    select(DagRun.run_id, DagRun.id)
    .join(
        TaskInstanceHistory,
        and_(TaskInstanceHistory.dag_id == DagRun.dag_id, TaskInstanceHistory.run_id == DagRun.run_id),
    )
    .where(
        TaskInstanceHistory.dag_id == bindparam("dag"),
        TaskInstanceHistory.task_id.in_(bindparam("tasks", expanding=True)),
    )
    .distinct()
    .order_by(DagRun.id.desc())
    .limit(bindparam("most"))
)
# XCom has an index of DAG, task and run. By the run's number, or where it may use the index of keys, SQLite
# reads all that is called return_value: of two indexes that it knows nothing of it takes any.
_RESULTS = select(
    XComModel.dag_run_id,
    XComModel.dag_id,
    XComModel.run_id,
    XComModel.task_id,
    XComModel.map_index,
    XComModel.timestamp,
).where(
    XComModel.dag_id == bindparam("dag"),
    XComModel.task_id.in_(bindparam("tasks", expanding=True)),
    XComModel.key.concat("") == RESULT,
)
_IN_RUNS = XComModel.run_id.in_(bindparam("runs", expanding=True))


def _with_states(results: Any) -> Any:
    """Return results with the try and the state that their task instances have now, the newest first."""
    of = TaskInstance
    instance = and_(*(getattr(of, name) == results.c[name] for name in _OF))
    wanted = select(results, of.try_number, of.state).outerjoin(of, instance)
    return wanted.order_by(results.c.timestamp.desc())


def _newest(results: Any) -> Any:
    """Return the newest results of each task and map index."""
    place = func.row_number().over(
        partition_by=(XComModel.task_id, XComModel.map_index), order_by=XComModel.timestamp.desc()
    )
    ranked = results.add_columns(place.label("place")).subquery()
    return _with_states(ranked).where(ranked.c.place == 1).limit(MOST_ROWS)


_NEWEST_IN_RUNS, _NEWEST = _newest(_RESULTS.where(_IN_RUNS)), _newest(_RESULTS)


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
    rows: list[Any] = []
    for dag_id, names in _by_dag(tasks).items():
        runs = _runs_of(session, dag_id, names, NEWEST_RUNS)
        found = session.execute(_NEWEST_IN_RUNS, {"dag": dag_id, "tasks": names, "runs": runs}).all()
        rows += found
        if left := [name for name in names if name not in {row.task_id for row in found}]:
            rows += session.execute(_NEWEST, {"dag": dag_id, "tasks": left})
    return list(_read_moves(session, _newest_first(rows)[:MOST_ROWS], tasks, None))


def moves_of(
    session: Session,
    tasks: Mapping[TaskName, str],
    indexes: Mapping[TaskName, Collection[int] | None],
    most: int,
    budget: Budget,
) -> Iterator[Move]:
    """
    Return the newest moves of some tasks, the newest first; those that nobody takes are not read.

    :param indexes: the map indexes of each task, ``None`` for all.
    :param most: results that are read at most.
    """
    rows: list[Any] = []
    for dag_id, names in _by_dag(tasks).items():
        mine = [
            and_(XComModel.task_id == name, *([] if kept is None else [XComModel.map_index.in_(kept)]))
            for name in names
            for kept in [indexes[dag_id, name]]
        ]
        newest = _RESULTS.where(_IN_RUNS, or_(*mine)).order_by(XComModel.timestamp.desc()).limit(most)
        runs = _runs_of(session, dag_id, names, MOST_RUNS)
        given = {"dag": dag_id, "tasks": names, "runs": runs}
        rows += session.execute(_with_states(newest.subquery()), given)
    yield from _read_moves(session, _newest_first(rows)[:most], tasks, budget)


def _by_dag(tasks: Iterable[TaskName]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for dag_id, task_id in tasks:
        found.setdefault(dag_id, []).append(task_id)
    return found


def _runs_of(session: Session, dag_id: str, task_ids: Collection[str], most: int) -> list[str]:
    """Return the newest runs of a DAG, and those in which tasks were retried or cleared since."""
    newest = session.scalars(_RUNS, {"dag": dag_id, "most": most})
    again = session.scalars(_RUN_AGAIN, {"dag": dag_id, "tasks": task_ids, "most": MOST_RUNS})
    return sorted({*newest, *again})


def _newest_first(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.timestamp, reverse=True)


def _read_moves(
    session: Session, rows: Sequence[Any], tasks: Mapping[TaskName, str], budget: Budget | None
) -> Iterator[Move]:
    """
    Return the moves of results; a value is read from the database once.

    Viewers who ask at the same time take turns, so that the one finds what the other has read.
    """
    for start in range(0, len(rows), _VALUES):
        chunk = rows[start : start + _VALUES]
        keys = {(row.dag_run_id, row.task_id, row.map_index, row.timestamp): row for row in chunk}
        moves = _moves.known(keys)
        left = None if budget is None else budget.left
        if len(moves) < len(keys) and left != 0 and _reading.acquire(timeout=-1 if left is None else left):
            try:
                moves = _moves.known(keys)
                found = _digest(session, {key: keys[key] for key in keys.keys() - moves.keys()}, tasks)
                _moves.put(found)
                moves |= found
            finally:
                _reading.release()
        if budget is not None:
            budget.unread += len(keys) - len(moves)
        for key, row in keys.items():
            if (move := moves.get(key)) is not None:
                # The states are those that the task instances have now.
                yield replace(move, instance=_instance(row))


def _digest(
    session: Session, rows: Mapping[Any, Any], tasks: Mapping[TaskName, str]
) -> dict[Any, Move | None]:
    """Return what the values of some results say in short, ``None`` for one of others."""
    if not rows:
        return {}
    keys = {key[:3]: key for key in rows}
    names = ("dag_run_id", "task_id", "map_index", "key")
    # SQLite finds no index for tuples.
    each = (
        and_(*(getattr(XComModel, name) == value for name, value in zip(names, (*key, RESULT), strict=True)))
        for key in keys
    )
    columns = (XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.value)
    values = session.execute(select(*columns).where(or_(*each)))
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
