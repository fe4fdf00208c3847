"""Reads from Kafka for one task instance: the times of its receipt's records, or the progress of its wait."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.ui.instances import InstanceResult, receipt_rows
from airflow_kafka_offsets.ui.move_state import moved_partitions
from airflow_kafka_offsets.ui.pipelines import Pipeline, is_unknown, pick_names
from airflow_kafka_offsets.ui.receipt_times import receipt_offsets
from airflow_kafka_offsets.ui.receipts import Value, value_kind
from airflow_kafka_offsets.ui.responses import TaskInstanceNowResponse

if TYPE_CHECKING:
    from airflow_kafka_offsets.ui.live_client import Answer, LiveClient

_WAITING = ("running", "deferred", "up_for_reschedule")


@dataclass(frozen=True)
class InstanceRequest:
    """
    A request to Kafka about a task instance.

    :param answer: the pending answer; ``None`` if no request is needed.
    :param cells: row and column of each requested time.
    :param rows: number of rows of the receipt's table.
    """

    state: str | None
    answer: Future[Answer] | None = None
    cells: list[tuple[int, str]] = field(default_factory=list)
    rows: int = 0


def ask_about_instance(live_client: LiveClient, instance: InstanceResult) -> InstanceRequest:
    """Start the request about a task instance."""
    state, value, dag_id = instance.row["state"], instance.value or {}, instance.row["dag_id"]
    if value_kind(value) == "receipt":
        rows = receipt_rows(value)
        asked = receipt_offsets(rows)
        kafka_config_id = value.get("kafka_config_id")
        if not asked or not isinstance(kafka_config_id, str):
            return InstanceRequest(state)
        answer = live_client.ask(
            "times",
            Pipeline(dag_id, {"kafka_config_id": kafka_config_id}),
            offsets=list(asked.values()),
            moved={} if value.get("plan_only") else moved_partitions(rows),
            made_ms=int(instance.at.timestamp() * 1000),
        )
        return InstanceRequest(state, answer, list(asked), len(rows))
    wait = wait_question(instance.row["rendered_fields"], value) if state in _WAITING else None
    if wait is not None:
        remaining = value.get("remaining")
        known = wait["kind"] == "reached" and isinstance(remaining, int)
        began = [instance.at.timestamp(), remaining] if known else None
        names = pick_names(wait["parameters"])
        return InstanceRequest(state, live_client.ask("wait", Pipeline(dag_id, names), **wait, began=began))
    return InstanceRequest(state)


def wait_question(fields: Mapping[str, Any], reading: Value) -> dict[str, Any] | None:
    """
    Return kind and parameters of a sensor's wait; ``None`` if its progress cannot be measured reliably.

    :param fields: the task's rendered fields.
    :param reading: the task's result, which has the target that was frozen when the wait began.
    """
    parameters = dict(fields)
    if "max_lag" in parameters:
        # Progress is measured in records. Time lag and headroom do not decrease like a number of records.
        kind = "lag" if parameters.get("max_time_lag") is parameters.get("min_headroom") is None else None
    elif "target" in parameters and "tolerance" in parameters:
        parameters["target"] = reading.get("target") or parameters["target"]
        kind = "reached" if _is_frozen(parameters["target"]) else None
    else:
        kind = None
    if kind is None or any(map(is_unknown, parameters.values())):
        return None
    return {"kind": kind, "parameters": parameters}


def _is_frozen(target: object) -> bool:
    # The meaning of latest or of a time was fixed when the wait began.
    return isinstance(target, Mapping) or (isinstance(target, str) and target.lstrip().startswith("{"))


def make_response(request: InstanceRequest, answer: Answer) -> TaskInstanceNowResponse:
    """Return the response for an answer; after an error there are no earlier values."""
    value = answer.value
    problems: list[str] = []
    known: dict[str, Any] = {}
    if answer.error is not None:
        problems = [answer.error]
    elif value is not None and not request.cells:
        known = {"wait": value}
    elif value is not None:
        times: dict[str, list[str | None]] = {name: [None] * request.rows for name in ("before", "after")}
        for (row, column), at in zip(request.cells, value["times"], strict=True):
            times[column][row] = at
        known = {"times": times, "since": value["since"]}
        if len({row for row, _ in request.cells}) < request.rows:
            problems.append("record times are shown only for the partitions that moved furthest")
        problems += [
            f"topic {topic} has another log than when this receipt was made, or its producers' clocks are "
            "ahead: the topic's record times are not shown"
            for topic in value["others"]
        ]
    return TaskInstanceNowResponse(state=request.state, read_at=answer.read_at, problems=problems, **known)
