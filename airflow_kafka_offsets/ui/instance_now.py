"""Asks Kafka about one task instance: when its receipt's records were written, how its wait gets on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.ui.instances import Left, rows_of
from airflow_kafka_offsets.ui.pipelines import Pipeline, is_unknown, only_names
from airflow_kafka_offsets.ui.receipt_times import places
from airflow_kafka_offsets.ui.receipts import Value, kind_of_value
from airflow_kafka_offsets.ui.responses import RecordTimes, Since, TaskInstanceNow, WaitResponse
from airflow_kafka_offsets.ui.since import moved_partitions

if TYPE_CHECKING:
    from airflow_kafka_offsets.ui.live import Answer, Live

_WAITING = ("running", "deferred", "up_for_reschedule")


@dataclass(frozen=True)
class Asked:
    """
    A question about a task instance.

    :param answer: to come; ``None`` if there is nothing to ask.
    :param cells: row and column of each time that is asked for.
    :param rows: of the receipt's table.
    """

    state: str | None
    answer: Future[Answer] | None = None
    cells: list[tuple[int, str]] = field(default_factory=list)
    rows: int = 0


def ask(live: Live, left: Left) -> Asked:
    """Ask about a task instance."""
    state, value, dag_id = left.state, left.value, left.row["dag_id"]
    if value is not None and kind_of_value(value) == "receipt":
        rows = rows_of(value)
        asked = places(rows)
        kafka_config_id = value.get("kafka_config_id")
        if not asked or not isinstance(kafka_config_id, str):
            return Asked(state)
        answer = live.ask(
            "times",
            Pipeline(dag_id, {"kafka_config_id": kafka_config_id}),
            offsets=list(asked.values()),
            moved={} if value.get("plan_only") else moved_partitions(rows),
            made_ms=int(left.at.timestamp() * 1000),
        )
        return Asked(state, answer, list(asked), len(rows))
    if state in _WAITING and (wait := wait_of(left.rendered, value or {})) is not None:
        remaining = (value or {}).get("remaining")
        known = wait["kind"] == "reached" and isinstance(remaining, int)
        began = [left.at.timestamp(), remaining] if known else None
        names = only_names(wait["parameters"])
        return Asked(state, live.ask("wait", Pipeline(dag_id, names), **wait, began=began))
    return Asked(state)


def wait_of(fields: Mapping[str, Any], reading: Value) -> dict[str, Any] | None:
    """
    Return kind and parameters of a sensor's wait; ``None`` for one of which nothing honest can be said.

    :param fields: what the task has rendered.
    :param reading: what it has left, which has the target that was frozen when the wait began.
    """
    given = dict(fields)
    if "max_lag" in given:
        # Times do not fall as records do.
        kind = "lag" if given.get("max_time_lag") is given.get("min_headroom") is None else None
    elif "target" in given and "tolerance" in given:
        given["target"] = reading.get("target") or given["target"]
        kind = "reached" if _is_frozen(given["target"]) else None
    else:
        kind = None
    if kind is None or any(map(is_unknown, given.values())):
        return None
    return {"kind": kind, "parameters": given}


def _is_frozen(target: object) -> bool:
    # What latest or a time means was decided when the wait began.
    return isinstance(target, Mapping) or (isinstance(target, str) and target.lstrip().startswith("{"))


def response(asked: Asked, answer: Answer) -> TaskInstanceNow:
    """Return what was answered; what is not new is not shown."""
    result = TaskInstanceNow(state=asked.state, read_at=answer.read_at)
    value = answer.value
    if answer.error is not None:
        result.problems.append(answer.error)
    elif value is None:
        pass
    elif not asked.cells:
        result.wait = WaitResponse(**value)
    else:
        times: dict[str, list[str | None]] = {name: [None] * asked.rows for name in ("before", "after")}
        for (row, column), at in zip(asked.cells, value["times"], strict=True):
            times[column][row] = at
        result.times = RecordTimes(**times)
        result.since = None if value.get("since") is None else Since(**value["since"])
        if len({row for row, _ in asked.cells}) < asked.rows:
            result.problems.append("record times are those of the partitions that moved furthest")
        result.problems += [
            f"topic {topic} holds another log than when this receipt was made, or its producers' clocks are "
            "ahead: those record times are not shown"
            for topic in value["others"]
        ]
    return result
