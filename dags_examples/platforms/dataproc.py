"""A serverless batch of Dataproc, and the commit of what it has read."""

from __future__ import annotations

from airflow.providers.google.cloud.operators.dataproc import DataprocCreateBatchOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="dataproc",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "dataproc"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        checkpoint_location="gs://lake/checkpoints/orders",
        checkpoint_conn_id="google_cloud_default",
    )

    job = DataprocCreateBatchOperator(
        task_id="job",
        project_id="example",
        region="europe-west1",
        batch={
            "pyspark_batch": {
                "main_python_file_uri": "gs://lake/jobs/orders.py",
                "args": ["--checkpoint", orders.checkpoint_location],
            },
            "runtime_config": {
                "version": "2.3",
                "properties": {
                    "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:3.5.3",
                },
            },
        },
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
