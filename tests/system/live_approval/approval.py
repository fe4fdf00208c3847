"""Resets that a person approves, each of a pipeline of its own."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_kafka_offsets.operators.approve import ApprovePlanOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

HOME, TOPIC = Path(os.environ["APPROVAL_HOME"]), os.environ["APPROVAL_TOPIC"]
NAMES = os.environ["APPROVAL_NAMES"].split(",")

for name in NAMES:
    pipeline = KafkaPipeline(f"{name}-{TOPIC}", checkpoint_location=str(HOME / name))
    with DAG(name, schedule=None) as dag:
        plan = ResetOffsetsOperator(
            task_id="plan", shift_by=-3, plan_only=True, inlets=pipeline.assets, **pipeline
        )
        approve = ApprovePlanOperator(
            task_id="approve",
            plan=plan.output,
            # Longer than a loop of the scheduler, see SCHEDULER_LOOP.
            response_timeout=timedelta(seconds=15) if name in ("unanswered", "defaulted") else None,
            defaults="Reject" if name == "defaulted" else None,
        )
        reset = ResetOffsetsOperator(
            task_id="reset",
            plan=plan.output,
            approval=approve.output,
            allow_self_approval=name != "own",
            quiet_period=0,
        )
        approve >> reset
    globals()[name] = dag

# What was committed has triggered a run, which speaks of offsets that the plan of "triggered" takes back.
feed = KafkaPipeline(f"triggered-{TOPIC}", checkpoint_location=str(HOME / "triggered"))
with DAG("feeds", schedule=None):
    CommitOffsetsOperator(task_id="commit", outlets=feed.assets, **feed)
with DAG("follows", schedule=feed.assets):
    EmptyOperator(task_id="work")
