"""A reset with an approval: a user sees the plan, and after the approval the pipeline moves as planned."""

from __future__ import annotations

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

orders = KafkaPipeline(
    group_id="orders-etl",
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
)

with DAG(
    dag_id="approved_reset",
    schedule=None,
    params={"to_datetime": Param("2026-01-02T00:00:00Z", type="string", format="date-time")},
    max_active_runs=1,
    tags=["kafka", "spark"],
) as dag:
    # --8<-- [start:approved]
    plan = ResetOffsetsOperator(
        task_id="plan", to_datetime="{{ params.to_datetime }}", plan_only=True, **orders
    )

    approve = ApprovalOperator(
        task_id="approve",
        subject="Move orders-etl to {{ params.to_datetime }}?",
        body="{{ ti.xcom_pull(task_ids='plan') | tojson(indent=2) }}",
        retries=0,  # another try would show the text of the first try
    )

    # The offsets of the approved plan. For another plan trigger a new run; do not clear this run.
    reset = ResetOffsetsOperator(
        task_id="reset",
        to_offset="{{ ti.xcom_pull(task_ids='plan')['after'] | tojson }}",
        retries=3,
        **orders,
    )

    plan >> approve >> reset
    # --8<-- [end:approved]
