"""Task instances in Airflow's API, and what they have left in XCom, read once and kept in short."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.ui.airflow_api import AirflowError, AsUser, in_thread
from airflow_kafka_offsets.ui.pipelines import NamedTask
from airflow_kafka_offsets.ui.receipts import Instance, Move, own_value, read_move

RESULT = "return_value"

# Those that may have rendered their fields and left a value.
BEGUN = ("success", "failed", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting")
_ENDED = ("success", "failed")

UNTOLD = (400, 409)
"""In a loop (Airflow 3.4) a task has several instances in a run, which an address does not tell apart."""

_KEPT = 20_000
_MOST_INDEXES = 2_000
_MOST_NAMED = 50
"""Map indexes that fit into an address."""

Row = Mapping[str, Any]
"""A task instance as Airflow's API returns it."""


class Moves:
    """
    What task instances did, the last used ones.

    An instance has another id with each try, so that what an ended one has left does not change. It is shown
    to those to whom Airflow's API has just shown the instance.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Move | None] = OrderedDict()

    async def of(self, ask: AsUser, row: Row, kind: str, budget: Budget | None = None) -> Move | None:
        """
        Return what an instance did; ``None`` if it has left nothing of this package.

        :param kind: what moves of the task are called.
        """
        key = str(row["id"])
        if key in self._kept:
            self._kept.move_to_end(key)
            kept = self._kept[key]
            # Somebody may have marked it as failed.
            return kept and replace(kept, instance=instance_of(row, kept.instance.at))
        if budget is not None and budget.is_over:
            budget.unread += 1
            return None
        move = None
        if (entry := await result(ask, row)) is not None:
            # Of a receipt of many partitions that takes a while.
            move = await in_thread(_digest, row, kind, entry)
        if row["state"] in _ENDED:
            self._kept[key] = move
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return move


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
    def is_over(self) -> bool:
        """Whether no value is read any more."""
        return time.monotonic() >= self._end


async def result(ask: AsUser, row: Row) -> Mapping[str, Any] | None:
    """Return the entry in XCom of what an instance has returned, ``None`` if there is none."""
    of = ("dags", row["dag_id"], "dagRuns", row["dag_run_id"], "taskInstances", row["task_id"])
    # In a loop (Airflow 3.4) the index alone does not say which iteration.
    region = {name: row[name] for name in ("region_id", "region_index") if row.get(name) is not None}
    where = region or {"map_index": row["map_index"]}
    found: Mapping[str, Any] | None = await ask.get(*of, "xcomEntries", RESULT, **where)
    return found


def instance_of(row: Row, at: datetime) -> Instance:
    """Return a task instance, and when it left what."""
    return Instance(
        row["dag_id"],
        row["dag_run_id"],
        row["task_id"],
        row["map_index"],
        at,
        row["try_number"],
        row["state"],
    )


def left_at(entry: Mapping[str, Any]) -> datetime:
    """Return when an entry was written to XCom."""
    return datetime.fromisoformat(entry["timestamp"])


def _digest(row: Row, kind: str, entry: Mapping[str, Any]) -> Move | None:
    value = own_value(entry["value"])
    return None if value is None else read_move(instance_of(row, left_at(entry)), kind, value)


async def newest(ask: AsUser, tasks: Sequence[NamedTask]) -> dict[str, list[Row]]:
    """
    Return the newest task instances of each task of one DAG, the newest first.

    Of a mapped task they are all indexes of its newest run.
    """
    few = 4 * len(tasks)
    rows = await begun(ask, tasks[0].dag_id, few, operator=sorted({task.operator for task in tasks}))
    found: dict[str, list[Row]] = {task.task_id: [] for task in tasks}
    for row in rows:
        if row["task_id"] in found:
            found[row["task_id"]].append(row)
    for task in tasks:
        its = found[task.task_id]
        if not its and len(rows) >= few:
            its += await begun(ask, task.dag_id, 4, task_id=task.task_id)
        if its and its[0]["map_index"] >= 0:
            found[task.task_id] = await begun(
                ask, task.dag_id, _MOST_INDEXES, run_id=its[0]["dag_run_id"], task_id=task.task_id
            )
    return found


async def with_fields(ask: AsUser, rows: Sequence[Row]) -> Sequence[Row]:
    """
    Return task instances of one task with what they have rendered.

    :param rows: the newest first. Airflow 3.1 leaves the fields out of its lists.
    """
    if not rows or any(row["rendered_fields"] for row in rows):
        return rows
    of_run = [row for row in rows if row["dag_run_id"] == rows[0]["dag_run_id"]]
    found = [await one(ask, row) for row in of_run[:_MOST_NAMED]]
    return [row for row in found if row is not None]


async def one(ask: AsUser, row: Row) -> Row | None:
    """Return a task instance as its own address has it."""
    index = [] if row["map_index"] < 0 else [str(row["map_index"])]
    steps = ("dags", row["dag_id"], "dagRuns", row["dag_run_id"], "taskInstances", row["task_id"], *index)
    try:
        found: Row | None = await ask.get(*steps)
    except AirflowError as error:
        if error.status in UNTOLD:
            return None
        raise
    return found


async def past(ask: AsUser, task: NamedTask, indexes: Collection[int] | None, most: int) -> list[Row]:
    """
    Return the newest instances of one task, the newest first.

    :param indexes: its map indexes, ``None`` for all.
    """
    named = sorted(indexes) if indexes is not None and len(indexes) <= _MOST_NAMED else None
    return await begun(ask, task.dag_id, most, task_id=task.task_id, map_index=named)


async def begun(ask: AsUser, dag_id: str, most: int, run_id: str = "~", **parameters: Any) -> list[Row]:
    """Return task instances of a DAG that have begun, the newest first."""
    return await ask.pages(
        most,
        *("dags", dag_id, "dagRuns", run_id, "taskInstances"),
        of="task_instances",
        state=BEGUN,
        # Also of a run that was cleared since.
        order_by="-start_date",
        **parameters,
    )
