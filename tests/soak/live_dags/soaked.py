"""DAGs of a soak whose Airflow is killed: pipelines that are moved, and a backlog that wakes one."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.triggers.event import LagEventTrigger

RETRIED = {"retries": 10, "retry_delay": timedelta(seconds=1)}
WAITING: dict[str, Any] = {"deferrable": True, "poke_interval": 1, "timeout": 600}

for lane in range(int(os.environ["SOAK_PIPELINES"])):
    name = f"moved-{lane}"
    pipeline = KafkaPipeline(
        group_id=name, topics=[name], checkpoint_location=f"{os.environ['SOAK_LAKE']}/{name}"
    )
    with DAG(name, schedule=None, max_active_runs=1, default_args=RETRIED):
        commit = CommitOffsetsOperator(task_id="commit", **pipeline)
        reset = ResetOffsetsOperator(
            task_id="reset", to_offset="{{ dag_run.conf['to'] | tojson }}", quiet_period=0, **pipeline
        )
        waited = OffsetsReachedSensor(
            task_id="waited",
            group_id=f"other-{lane}",
            topics=[name],
            target="{{ dag_run.conf['target'] | tojson }}",
            **WAITING,
        )
        restore = RestoreOffsetsOperator(
            task_id="restore",
            receipt=reset.output,
            restore_when="always",
            quiet_period=0,
            **pipeline,
        )
        back = OffsetsReachedSensor(
            task_id="back", target="{{ dag_run.conf['ends'] | tojson }}", **WAITING, **pipeline
        )
        commit >> reset >> waited >> restore >> back

backlog = KafkaPipeline(group_id="backlog", topics=["backlog"])
trigger = LagEventTrigger(
    group_id="backlog",
    topics=["backlog"],
    min_lag=int(os.environ["SOAK_BURST"]),
    poll_interval=1,
    refire_after=20,
)
asset = Asset("backlog", watchers=[AssetWatcher(name="lag", trigger=trigger)])
with DAG("backlog", schedule=[asset], max_active_runs=1, default_args=RETRIED):
    window = PlanOffsetWindowOperator(task_id="plan", **backlog)
    CommitOffsetWindowOperator(task_id="commit", window=window.output, **backlog)
