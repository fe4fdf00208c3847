"""Recoveries whose tasks say something else than the world does: marked, timed out, deleted, taken back."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

HOME, TOPIC = Path(os.environ["RECOVERY_HOME"]), os.environ["RECOVERY_TOPIC"]
HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
TIMEOUT = timedelta(seconds=45)


class CommitsLater(CommitOffsetsOperator):
    """A commit that fails as often as it is asked to."""

    def execute(self, context):
        if (Path(self.checkpoint_location) / "no-commit").exists():
            raise RuntimeError("the broker is away")
        return super().execute(context)


@task(retries=1)
def job(place: str) -> None:
    """Read to the end, fail, or begin a batch and hang in it, as the file says."""
    checkpoint = Path(place)
    wish = checkpoint / "job"
    does = wish.read_text() if wish.exists() else "read"
    if does == "fail":
        raise RuntimeError("the job failed")
    end = json.dumps(KafkaOffsetsHook().log_offsets(TOPIC)["log_end"])
    number = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")) + 1
    (checkpoint / "offsets" / str(number)).write_text(f"v1\n{HEAD}\n{end}")
    if does == "hang":
        wish.unlink()
        time.sleep(120)
        raise AirflowFailException("nobody has ended the job")
    (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


for name in ("marked", "commit_marked", "taken_back", "timed_out", "deleted", "whole"):
    names = {"group_id": f"{name}-{TOPIC}", "checkpoint_location": str(HOME / name)}
    with DAG(
        name,
        schedule=None,
        default_args=names,
        dagrun_timeout=TIMEOUT if name == "timed_out" else None,
    ) as dag:
        reset = ResetOffsetsOperator(task_id="reset", shift_by=-3, quiet_period=0)
        restore = RestoreOffsetsOperator(
            task_id="restore",
            receipt=reset.output,
            quiet_period=0,
            on_pending_batch="discard",
            idempotent_sink=True,
        )
        # A task that is cleared while it runs waits for its retry as well.
        again = timedelta(seconds=1) if name == "whole" else timedelta(hours=1)
        work = job.override(retry_delay=again)(str(HOME / name))
        reset >> work
        if name == "marked":
            work >> restore.as_teardown(setups=reset)
        else:
            later = CommitsLater(task_id="commit", retries=1, retry_delay=timedelta(hours=1))
            work >> later >> restore.as_teardown(setups=reset)
    globals()[name] = dag

# Another DAG of the same pipeline takes a recovery back, and begins one of its own.
with DAG(
    "another",
    schedule=None,
    default_args={
        "group_id": f"taken_back-{TOPIC}",
        "checkpoint_location": str(HOME / "taken_back"),
    },
) as another:
    back = RestoreOffsetsOperator(
        task_id="back",
        receipt="{{ dag_run.conf['receipt'] | tojson }}",
        restore_when="always",
        quiet_period=0,
    )
    back >> ResetOffsetsOperator(task_id="forward", to_offset=30, quiet_period=0)
