"""What to ask Kafka about one task instance: what became of its receipt, or the progress of its wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.ui.instances import InstanceResult, receipt_rows
from airflow_kafka_offsets.ui.pipelines import Pipeline, is_unknown, pick_names
from airflow_kafka_offsets.ui.receipt_now import receipt_question
from airflow_kafka_offsets.ui.receipts import Value, value_kind

_WAITING = ("running", "deferred", "up_for_reschedule")


def instance_question(instance: InstanceResult) -> dict[str, Any] | None:
    """Return the question about a task instance for a LiveClient; ``None`` if there is nothing to ask."""
    state, value, dag_id = instance.row["state"], instance.value or {}, instance.row["dag_id"]
    if value_kind(value) == "receipt":
        kafka_config_id, made_ms = value.get("kafka_config_id"), int(instance.at.timestamp() * 1000)
        asked = receipt_question(receipt_rows(value), made_ms, plan_only=bool(value.get("plan_only")))
        if not asked["offsets"] or not isinstance(kafka_config_id, str):
            return None
        return {
            "question": "times",
            "pipeline": Pipeline(dag_id, {"kafka_config_id": kafka_config_id}),
            **asked,
        }
    wait = wait_question(instance.row["rendered_fields"], value) if state in _WAITING else None
    if wait is None:
        return None
    remaining = value.get("remaining")
    known = wait["kind"] == "reached" and isinstance(remaining, int)
    began = [instance.at.timestamp(), remaining] if known else None
    pipeline = Pipeline(dag_id, pick_names(wait["parameters"]))
    return {"question": "wait", "pipeline": pipeline, **wait, "began": began}


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
