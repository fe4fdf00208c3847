"""
Tasks that emit the same hours, each for an asset of its own, and that are killed on their first try: one
before its first step, the next one before its second, and so on until after its success was reported.

A step is a request to Kafka, or a message to Airflow.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from functools import wraps
from typing import Any

from airflow.sdk import DAG, Asset

from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator

STEPS = int(os.environ.get("STEPS", "16"))
ASKED = ("committed", "log_ranges", "record_times", "offsets_for_time")


class Killed(CompletedIntervalsOperator):
    """Kills its process before a step; after the last one if there are fewer steps."""

    def __init__(self, *, step: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.taken = 0

    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            from airflow.sdk.execution_time import task_runner

            comms = task_runner.SUPERVISOR_COMMS
            comms.send = self._counted(comms.send)  # type: ignore[method-assign]
            open_client = self.open_client

            def counted() -> Any:
                client = open_client()
                for name in ASKED:
                    setattr(client, name, self._counted(getattr(client, name)))
                return client

            self.open_client = counted  # type: ignore[method-assign]
        return super().execute(context)

    def _counted(self, method: Any) -> Any:
        @wraps(method)
        def ask(*arguments: Any, **parameters: Any) -> Any:
            self.taken += 1
            if self.taken == self.step:
                print(f"killed before step {self.step}: {method.__name__} {str(arguments)[:200]}")
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **parameters)
            if type(next(iter([*arguments, *parameters.values()]), None)).__name__ == "SucceedTask":
                print(f"killed after step {self.taken}, the last one")
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return ask


with DAG(dag_id="killed_hours", schedule=None, catchup=False) as dag:
    for step in range(1, STEPS + 1):
        Killed(
            task_id=f"killed_{step}",
            step=step,
            outlets=[Asset(f"killed_{step}")],
            group_id=os.environ.get("ORDERS_GROUP", "orders"),
            topics=os.environ.get("ORDERS_TOPIC", "orders"),
            start_from=os.environ.get("START_FROM", "2026-03-01T00:00:00+00:00"),
            retries=2,
            retry_delay=timedelta(0),
        )
