"""Checks of the drift of a query's group, and the checkpoint that they read."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from written_query import Query

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator

LONG_AGO = 1_700_000_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., str]:
    """Writes a checkpoint as Spark does: checkpoint({topic: {0: 5}}, ended_at=..., done=True)."""

    def write(
        topics: Mapping[str, Any],
        *,
        batch: int = 0,
        planned_at: float | None = None,
        ended_at: float = LONG_AGO,
        done: bool = True,
    ) -> str:
        query = Query(tmp_path / "checkpoint", "query-a")
        query.plan(batch, topics, at=planned_at)
        if done:
            query.finish(batch)
            os.utime(query.root / "commits" / str(batch), (ended_at, ended_at))
        return query.location

    return write


def check(context: Any, **parameters: Any) -> Any:
    return CheckOffsetDriftOperator(task_id="check", **parameters).execute(context)


def verdicts(context: Any) -> dict[int, str]:
    """The verdicts of the only group in the report: {partition: verdict}."""
    (pipeline,) = context["ti"].xcoms["return_value"]["pipelines"]
    (group,) = pipeline["groups"]
    return {entry["partition"]: entry["verdict"] for entry in group["partitions"]}
