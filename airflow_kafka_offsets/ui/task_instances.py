"""Reads task instances from Airflow's API, and caches summaries of their results in XCom."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.ui.airflow_api import (
    INSTANCES,
    AmbiguousError,
    AsUser,
    TooLargeError,
    run_in_thread,
)
from airflow_kafka_offsets.ui.pipelines import NamedTask, operator_kind
from airflow_kafka_offsets.ui.receipts import (
    TaskInstance,
    TaskOutcome,
    Value,
    parse_package_value,
    read_outcome,
)
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache

# States of instances that may have rendered fields and a result.
BEGUN = ("success", "failed", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting")

# Bounds the memory; results that were dropped are read again.
_KEPT = 20_000
MOST_INDEXES = 2_000
"""Number of map indexes of a task that are shown, in pages of INSTANCES."""

_MOST_NAMED = 50
"""Number of map indexes that fit into an address."""

Row = Mapping[str, Any]
"""A task instance as Airflow's API returns it."""


class TaskOutcomes:
    """
    Cache of the results of task instances, limited to the last used ones.

    An instance has a new id for each try, so the result of an ended instance does not change. A result is
    shown only to users to whom Airflow's API has just returned the instance.
    """

    def __init__(self) -> None:
        self._kept: SingleFlightCache[str, tuple[TaskOutcome | None]] = SingleFlightCache(math.inf, _KEPT)

    def is_known(self, row: Row) -> bool:
        """Return whether the result of an instance is in the cache."""
        return self._kept.get_known(str(row["id"])) is not None

    async def read(self, ask: AsUser, row: Row) -> TaskOutcome | None:
        """Return the result of an instance; ``None`` if it has stored no result of this package."""
        key = str(row["id"])
        if (kept := self._kept.get_known(key)) is not None:
            (move,) = kept
            # A user may have marked the instance as failed since.
            return move and replace(move, instance=make_instance(row, move.instance.at))
        try:
            entry = await result_entry(ask, row)
        except TooLargeError:
            # No result of this package, but perhaps that of a derived task.
            entry = None
        # In a thread, because a receipt of many partitions takes a while.
        move = None if entry is None else await run_in_thread(_read_entry, row, entry)
        # The result of a running task may still change.
        if row["state"] in ("success", "failed"):
            self._kept.put(key, (move,))
        return move


async def result_entry(ask: AsUser, row: Row) -> Mapping[str, Any] | None:
    """Return the XCom entry of an instance's return value, or ``None``."""
    # In a loop (Airflow 3.4), the map index alone does not identify the iteration.
    region = {name: row[name] for name in ("region_id", "region_index") if row.get(name) is not None}
    where = region or {"map_index": row["map_index"]}
    of = instance_steps(row["dag_id"], row["dag_run_id"], row["task_id"])
    found: Mapping[str, Any] | None = await ask.get(*of, "xcomEntries", "return_value", **where)
    return found


def instance_steps(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> tuple[str, ...]:
    """Return the address of a task instance below that of Airflow's API."""
    index = () if map_index < 0 else (str(map_index),)
    return ("dags", dag_id, "dagRuns", run_id, "taskInstances", task_id, *index)


def make_instance(row: Row, at: datetime) -> TaskInstance:
    """Return a task instance with the time at which it stored its result."""
    names = (row["dag_id"], row["dag_run_id"], row["task_id"], row["map_index"])
    return TaskInstance(*names, at, row["try_number"], row["state"])


def _read_entry(row: Row, entry: Mapping[str, Any]) -> TaskOutcome | None:
    value = parse_package_value(entry["value"])
    return None if value is None else read_row(row, datetime.fromisoformat(entry["timestamp"]), value)


def read_row(row: Row, at: datetime, value: Value) -> TaskOutcome | None:
    """Return the summary of an instance's result, see :func:`read_outcome`."""
    # The operator of this run, which the task may have replaced since.
    return read_outcome(make_instance(row, at), operator_kind(row["operator"] or ""), value)


async def newest_instances(
    ask: AsUser, tasks: Sequence[NamedTask], known: Mapping[NamedTask, list[Row]]
) -> dict[NamedTask, list[Row]]:
    """
    Return the newest task instances of each task of one DAG, the newest first.

    For a mapped task these are all map indexes of its newest run. Of those that have not begun there, such as
    after an upstream task has failed, an earlier run has the names.

    :param known: result of :func:`newest_instances_of_dags`.
    """
    found = {task: known.get(task, []) for task in tasks}
    if asked := {task.task_id: task for task in tasks if task not in known}:
        # Several runs are read, because the newest run may not have reached a task yet.
        few = 4 * len(asked)
        operators = sorted({task.operator for task in asked.values()})
        rows = await begun_instances(ask, tasks[0].dag_id, few, operator=operators)
        for row in rows:
            if task := asked.get(row["task_id"]):
                found[task].append(row)
        for task in asked.values():
            if not found[task] and len(rows) >= few:
                found[task] = await begun_instances(ask, task.dag_id, 4, task_id=task.task_id)
    for task, its in found.items():
        if its and its[0]["map_index"] >= 0:
            found[task] = await _each_index(ask, task, its[0]["dag_run_id"])
    return found


async def _each_index(ask: AsUser, task: NamedTask, run_id: str) -> list[Row]:
    steps = ("dags", task.dag_id, "dagRuns", run_id, "taskInstances")
    named: dict[str, Any] = {"task_id": task.task_id, "order_by": "-start_date"}
    rows = await ask.pages(MOST_INDEXES, *steps, of="task_instances", **named)
    begun = [row for row in rows if row["state"] in BEGUN]
    missing = {row["map_index"] for row in rows if row["state"] != "removed"}
    missing -= {row["map_index"] for row in begun}
    earlier: dict[int, Row] = {}
    if missing:
        for row in await past_instances(ask, task, missing, len(rows) + len(begun)):
            if row["map_index"] in missing:
                earlier.setdefault(row["map_index"], row)
    return [*begun, *earlier.values()]


async def newest_instances_of_dags(ask: AsUser, tasks: Collection[NamedTask]) -> dict[NamedTask, list[Row]]:
    """
    Return the newest task instances of tasks of several DAGs, the newest first.

    Airflow takes about as long for a hundred instances of all DAGs as for two instances of one DAG. Tasks
    without an instance in the result have run long before the others, or never.
    """
    found: dict[NamedTask, list[Row]] = {}
    operators = sorted({task.operator for task in tasks})
    # Queried by operator, because a task that seldom runs is then still among the first ones.
    for asked in dict.fromkeys((tuple(operators), *((operator,) for operator in operators))):
        wanted = {
            (task.dag_id, task.task_id): task
            for task in tasks
            if task.operator in asked and task not in found
        }
        missing, read = set(wanted.values()), 0
        while missing:
            of_all = ("dags", "~", "dagRuns", "~", "taskInstances")
            page = await ask.get(*of_all, **_newest_first(operator=asked), limit=INSTANCES, offset=read)
            rows = page["task_instances"]
            read += len(rows)
            before = len(missing)
            for row in rows:
                if task := wanted.get((row["dag_id"], row["task_id"])):
                    found.setdefault(task, []).append(row)
                    missing.discard(task)
            if not rows or read >= page["total_entries"]:
                found |= {task: [] for task in missing}
                break
            if len(missing) == before:
                break
    return found


async def with_rendered_fields(ask: AsUser, rows: Sequence[Row]) -> Sequence[Row]:
    """Add the rendered fields, which Airflow 3.1 does not list, to instances of a task, the newest first."""
    if not rows or any(row["rendered_fields"] for row in rows):
        return rows
    named = [row for row in rows if row["map_index"] >= 0 or row["dag_run_id"] == rows[0]["dag_run_id"]]
    found: list[Row | None] = []
    for row in named[:_MOST_NAMED]:
        steps = instance_steps(row["dag_id"], row["dag_run_id"], row["task_id"], row["map_index"])
        with suppress(AmbiguousError):
            found.append(await ask.get(*steps))
    return [row for row in found if row is not None]


async def past_instances(
    ask: AsUser, task: NamedTask, indexes: Collection[int] | None, limit: int
) -> list[Row]:
    """Return the newest instances of one task, of all or of given map indexes, the newest first."""
    named = sorted(indexes) if indexes is not None and len(indexes) <= _MOST_NAMED else None
    return await begun_instances(ask, task.dag_id, limit, task_id=task.task_id, map_index=named)


async def begun_instances(
    ask: AsUser, dag_id: str, limit: int, run_id: str = "~", **parameters: Any
) -> list[Row]:
    """Return task instances of a DAG that have begun, the newest first."""
    steps = ("dags", dag_id, "dagRuns", run_id, "taskInstances")
    return await ask.pages(limit, *steps, of="task_instances", **_newest_first(**parameters))


def _newest_first(**parameters: Any) -> dict[str, Any]:
    """Return parameters that list started instances, the newest first, including those of cleared runs."""
    return {"state": BEGUN, "order_by": "-start_date", **parameters}
