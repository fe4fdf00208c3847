"""
A daily check that consumer groups agree with their checkpoints, and that both are still in the log.

The check changes nothing. It checks both pipelines before it fails, and its report is in XCom in any case.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

orders = KafkaPipeline(
    group_id="orders-etl",
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
    kafka_config_id="kafka_main",
)
payments = KafkaPipeline(
    group_id={"payments": "payments-etl", "refunds": "refunds-etl"},
    checkpoint_location="s3a://lake/checkpoints/payments",
    checkpoint_conn_id="lake",
    kafka_config_id="kafka_main",
)

with DAG(
    dag_id="check_drift",
    schedule="0 6 * * *",
    catchup=False,
    tags=["kafka", "spark"],
):
    # --8<-- [start:check]
    check = CheckOffsetDriftOperator(
        task_id="check",
        pipelines=[orders, payments],
        grace="PT30M",
    )
    # --8<-- [end:check]
