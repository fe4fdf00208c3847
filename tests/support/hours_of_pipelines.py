"""Runs of CompletedIntervalsOperator on a pipeline, and plans of the hours that it emits."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from interval_runs import FakeAirflow

from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator

DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
FOREVER = {"retention.ms": "-1"}
HOURS = Asset("hours")


def ms(hours: float) -> int:
    return int((DAY + timedelta(hours=hours)).timestamp() * 1000)


class Runs:
    """Runs of the operator on one pipeline, and the hours that they emit."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.airflow = FakeAirflow()
        self.number = 0

    def run(self, **parameters: Any) -> list[str]:
        """Return the hours that a run emits, such as "05"."""
        given = {"outlets": [HOURS], "start_from": DAY.isoformat(), **self.names, **parameters}
        operator = CompletedIntervalsOperator(task_id="hours", **given)
        before = len(self.airflow.keys())
        self.number += 1
        self.airflow.run(operator, f"run-{self.number}")
        return [key[11:13] if key < "2026-03-02" else key[5:13] for key in self.airflow.keys()[before:]]


@pytest.fixture
def write(produce: Callable[..., None]) -> Callable[[str, Mapping[int, Sequence[float]]], None]:
    """write(topic, {0: [0.5, 1.5]}) writes records of these hours."""

    def send(topic: str, hours: Mapping[int, Sequence[float]]) -> None:
        counts = {number: len(each) for number, each in hours.items()}
        produce(topic, counts, {number: [ms(each) for each in them] for number, them in hours.items()})

    return send


def plan(context: Mapping[str, Any], key: str | None, **parameters: Any) -> Any:
    """Plan the window of a run with a partition key."""
    operator = PlanOffsetWindowOperator(task_id="plan", on_empty="continue", **parameters)
    run: Any = {**context, "dag_run": SimpleNamespace(partition_key=key)}
    return operator.execute(run)
