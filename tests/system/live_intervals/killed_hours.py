"""
Tasks that emit the same hours, each for an asset of its own, and that are killed on their first try: each
before or after another request to Kafka or message to Airflow.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset

from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator

ASKED = ("committed", "log_ranges", "record_times")
POINTS = [
    f"{when}_{step}"
    for step in (
        "GetAssetStateStoreByName_1",  # what is kept
        "committed_1",
        "log_ranges_1",
        "record_times_1",
        "SetAssetStateStoreByName_1",  # where it begins
        "SetAssetStateStoreByName_2",  # what it is about to emit
        "SetXCom_1",  # its result
        "SucceedTask_1",
    )
    for when in ("before", "after")
]
if not os.environ.get("LONG_TESTS"):
    # Around the last ones, between which all is decided.
    POINTS = [POINTS[3], *POINTS[-7::2]]


class Killed(CompletedIntervalsOperator):
    """Kills its process at a point of its first try."""

    def __init__(self, *, point: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.point = point
        self.taken: Counter[str] = Counter()

    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            from airflow.sdk.execution_time import task_runner

            comms: Any = type(task_runner.SUPERVISOR_COMMS)
            comms.send = self._counted(comms.send)
            open_client = self.open_client

            def counted(kafka_config_id: str | None = None) -> Any:
                client = open_client(kafka_config_id)
                for name in ASKED:
                    setattr(client, name, self._counted(getattr(client, name)))
                return client

            self.open_client = counted  # type: ignore[method-assign]
        return super().execute(context)

    def _counted(self, method: Any) -> Any:
        @wraps(method)
        def ask(*arguments: Any, **parameters: Any) -> Any:
            name = method.__name__
            if name == "send":
                name = type([*arguments, *parameters.values()][-1]).__name__
            self.taken[name] += 1
            self._reach(f"before_{name}_{self.taken[name]}")
            answer = method(*arguments, **parameters)
            self._reach(f"after_{name}_{self.taken[name]}")
            return answer

        return ask

    def _reach(self, point: str) -> None:
        if point == self.point:
            killed = Path(os.environ["LAKE"]) / "killed" / point
            killed.parent.mkdir(parents=True, exist_ok=True)
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


with DAG(dag_id="killed_hours", schedule=None, catchup=False) as dag:
    for point in POINTS:
        Killed(
            task_id=point,
            point=point,
            outlets=[Asset(point)],
            group_id=os.environ.get("ORDERS_GROUP", "orders"),
            topics=os.environ.get("ORDERS_TOPIC", "orders"),
            start_from=os.environ.get("START_FROM", "2026-03-01T00:00:00+00:00"),
            retries=2,
            retry_delay=timedelta(0),
        )
