"""Stores a task's result before the task ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context


def push_result(context: Context, value: Mapping[str, Any]) -> None:
    """Store a result in XCom now, so that it is there even if the task fails; respect ``do_xcom_push``."""
    ti = context.get("ti")
    # Outside of a run, such as in a test, a task has no instance.
    if ti is not None and getattr(context.get("task"), "do_xcom_push", True):
        ti.xcom_push(key="return_value", value=value)
