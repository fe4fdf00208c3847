"""Move a pipeline back to a time, run its job again, and put everything back if that fails."""

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
    # Every scenario is in the form; fill in one.
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
        # The job overwrites: it writes each batch with foreachBatch, by the records' own key.
        on_pending_batch="discard",
        idempotent_sink=True,
        # If the restore fails for good, the pipeline stays where the reset moved it.
        retries=3,
        **orders,
    )
    reset >> spark >> commit >> restore.as_teardown(setups=reset)
    # --8<-- [end:restore]
