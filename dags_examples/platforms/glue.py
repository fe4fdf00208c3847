"""A Glue job that reads what is new and ends, and the commit of what it has read."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.glue import GlueJobOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="glue",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "glue"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        checkpoint_location="s3://lake/checkpoints/orders",
        checkpoint_conn_id="aws_default",
    )

    job = GlueJobOperator(
        task_id="job",
        job_name="orders",
        script_args={"--CHECKPOINT": orders.checkpoint_location},
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
