"""
A reset with an approval: a user sees the plan, and after the approval the pipeline moves as planned.

LAKE comes from the environment.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_kafka_offsets.operators.approve import ApprovePlanOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

LAKE = os.environ.get("LAKE", "s3a://lake")

orders = KafkaPipeline(group_id="orders-etl", checkpoint_location=f"{LAKE}/checkpoints/orders")

with DAG(
    dag_id="approved_reset",
    schedule=None,
    params={"to_datetime": Param("2026-01-02T00:00:00Z", type="string", format="date-time")},
    max_active_runs=1,
    tags=["kafka", "spark"],
) as dag:
    # --8<-- [start:approved]
    plan = ResetOffsetsOperator(
        task_id="plan",
        to_datetime="{{ params.to_datetime }}",
        plan_only=True,
        inlets=orders.assets,  # to list the runs that the group's commits have triggered
        **orders,
    )

    # --8<-- [start:approve]
    approve = ApprovePlanOperator(task_id="approve", plan=plan.output, response_timeout=timedelta(hours=8))
    # --8<-- [end:approve]

    reset = ResetOffsetsOperator(
        task_id="reset",
        plan=plan.output,
        approval=approve.output,
        allow_self_approval=False,
        retries=3,
        **orders,
    )

    plan >> approve >> reset
    # --8<-- [end:approved]
