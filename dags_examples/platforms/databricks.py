"""A job on Databricks, started through the workspace's API, and the commit of what it has read."""

from __future__ import annotations

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="databricks",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "databricks"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        checkpoint_location="abfss://lake@example.dfs.core.windows.net/checkpoints/orders",
        checkpoint_conn_id="adls_default",
    )

    job = DatabricksSubmitRunOperator(
        task_id="job",
        json={
            "new_cluster": {
                "spark_version": "16.4.x-scala2.12",
                "num_workers": 2,
                "spark_conf": orders.spark_conf(),
            },
            "spark_python_task": {"python_file": "dbfs:/jobs/orders.py"},
        },
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
