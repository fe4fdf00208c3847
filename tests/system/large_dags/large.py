"""One DAG of each kind: a commit with a wait and a check, a failed move, waits, windows that lag starts."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.triggers.event import LagEventTrigger

LAKE = os.environ["LAKE"]


def pipeline(name: str, *, checkpoint: bool = False) -> KafkaPipeline:
    """Return the pipeline whose topic the environment names."""
    location = f"{LAKE}/checkpoints/{name}" if checkpoint else None
    topics = [os.environ[f"{name.upper()}_TOPIC"]]  # the group is called after it
    return KafkaPipeline(group_id=topics[0], topics=topics, checkpoint_location=location)


committed, moved = pipeline("committed", checkpoint=True), pipeline("moved", checkpoint=True)
awaited, woken = pipeline("awaited"), pipeline("woken")
waiting: dict[str, Any] = {"deferrable": True, "poke_interval": 1, "timeout": 300}

with DAG("committed", schedule=None):
    commit = CommitOffsetsOperator(task_id="commit", outlets=[committed.asset], **committed)
    fresh = ConsumerGroupLagSensor(task_id="fresh", max_lag=0, **waiting, **committed)
    check = CheckOffsetDriftOperator(task_id="check", pipelines=[committed], grace=0)
    commit >> fresh >> check

with DAG("follows", schedule=[committed.asset]):
    EmptyOperator(task_id="work")

with DAG("moved", schedule=None):
    reset = ResetOffsetsOperator(task_id="reset", to_offset="earliest", quiet_period=0, **moved)

    @task
    def process() -> None:
        """Fail, so that everything is put back."""
        raise RuntimeError("the job has failed")

    restore = RestoreOffsetsOperator(task_id="restore", receipt=reset.output, quiet_period=0, **moved)
    reset >> process() >> restore.as_teardown(setups=reset)

with DAG("awaited", schedule=None):
    ConsumerGroupLagSensor(task_id="lag", max_lag=0, **waiting, **awaited)
    OffsetsReachedSensor(task_id="reached", target="latest", **waiting, **awaited)

backlog = Asset(
    "large_backlog",
    watchers=[
        AssetWatcher(name="lag", trigger=LagEventTrigger(**woken, min_lag=100, poll_interval=1)),
    ],
)

with DAG("woken", schedule=[backlog], max_active_runs=1):
    plan = PlanOffsetWindowOperator(task_id="plan", on_no_commit="earliest", **woken)
    CommitOffsetWindowOperator(task_id="commit", window=plan.output, **woken)
