"""Recoveries of stopped queries: what their jobs do is written in a file beside each checkpoint."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.moves import apply, write
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

HOME, TOPIC = Path(os.environ["RECOVERY_HOME"]), os.environ["RECOVERY_TOPIC"]
HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def read_to_the_end(checkpoint: Path) -> None:
    """Write what a Spark query writes when it reads all that there is."""
    end = KafkaOffsetsHook().log_offsets(TOPIC)["log_end"]
    number = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")) + 1
    (checkpoint / "offsets" / str(number)).write_text(f"v1\n{HEAD}\n{json.dumps(end)}")
    (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def killed_once(checkpoint: Path) -> None:
    """Kill the reset between checkpoint and groups, once, if that is asked for."""
    written = write.commit_groups

    def commit_groups(*args: Any) -> None:
        wish = checkpoint / "kill"
        if wish.exists():
            wish.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        written(*args)

    vars(apply)["commit_groups"] = commit_groups


for name in ("cleared", "given_up", "broken", "half_way"):
    checkpoint = HOME / name
    names = {"group_id": f"{name}-{TOPIC}", "checkpoint_location": str(checkpoint)}

    class Reset(ResetOffsetsOperator):
        """A reset that can be killed."""

        def execute(self, context):
            killed_once(Path(self.checkpoint_location))
            return super().execute(context)

    with DAG(name, schedule=None, default_args=names) as dag:
        reset = Reset(task_id="reset", shift_by=-3, quiet_period=0)

        @task(retries=1, retry_delay=timedelta(hours=1))
        def job(place: str) -> None:
            """Read to the end, or fail once or for good, as the file says."""
            checkpoint = Path(place)
            wish = checkpoint / "job"
            does = wish.read_text() if wish.exists() else "read"
            if does == "fail":
                raise RuntimeError("the job failed")
            if does == "fail for good":
                raise AirflowFailException("the job failed")
            read_to_the_end(checkpoint)

        commit = CommitOffsetsOperator(task_id="commit")
        restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, quiet_period=0)
        reset >> job(str(checkpoint)) >> commit >> restore.as_teardown(setups=reset)
    globals()[name] = dag


# It fails once after it has moved, if that is asked for.
class FailsOnce(ResetOffsetsOperator):
    """A reset that is tried again after it has moved everything."""

    def execute(self, context):
        receipt = super().execute(context)
        wish = HOME / "scheduled" / f"fail-{self.task_id}"
        if wish.exists():
            wish.unlink()
            raise RuntimeError("the worker has died")
        return receipt


# Airflow gives the run of a schedule the same id when it creates it again.
with DAG(
    "scheduled",
    schedule="@once",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    is_paused_upon_creation=True,
) as scheduled:

    @task
    def beside() -> None:
        """Be cleared while the resets wait for their next try."""

    @task
    def behind() -> None:
        """Come after the resets."""

    again: dict[str, Any] = {
        "shift_by": -3,
        "retries": 1,
        "retry_delay": timedelta(seconds=8),
    }
    beside()
    [
        FailsOnce(
            task_id="both",
            group_id=f"scheduled-{TOPIC}",
            checkpoint_location=str(HOME / "scheduled"),
            quiet_period=0,
            **again,
        ),
        FailsOnce(task_id="group", group_id=f"alone-{TOPIC}", topics=TOPIC, **again),
    ] >> behind()
