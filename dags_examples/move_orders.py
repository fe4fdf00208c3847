"""Move a pipeline back to a time, run its job again, and restore the offsets if the job fails."""

from __future__ import annotations

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

orders = KafkaPipeline(
    group_id="orders-etl",
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
)

with DAG(
    dag_id="move_orders",
    schedule=None,
    # The form has every scenario; fill in one.
    params={name: Param("", type="string") for name in ("to_datetime", "shift_by", "by_duration")},
    max_active_runs=1,
    tags=["kafka", "spark"],
) as dag:
    # --8<-- [start:reset]
    reset = ResetOffsetsOperator(
        task_id="reset",
        to_datetime="{{ params.to_datetime }}",
        shift_by="{{ params.shift_by }}",
        by_duration="{{ params.by_duration }}",
        retries=3,
        **orders,
    )
    # --8<-- [end:reset]

    spark = SparkSubmitOperator(
        task_id="spark", application="s3a://lake/jobs/orders.py", conf=orders.spark_conf()
    )
    commit = CommitOffsetsOperator(task_id="commit", retries=3, **orders)

    # --8<-- [start:restore]
    restore = RestoreOffsetsOperator(
        task_id="restore",
        receipt=reset.output,
        # The job writes each batch with foreachBatch and overwrites earlier output.
        on_pending_batch="discard",
        idempotent_sink=True,
        # If the restore fails, no other task restores the pipeline.
        retries=3,
        **orders,
    )
    reset >> spark >> commit >> restore.as_teardown(setups=reset)
    # --8<-- [end:restore]
