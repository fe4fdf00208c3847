"""
Copy two Kafka topics into one, with a group that follows while the query runs.

The job does not import this package. It names the group in an option of each of its Kafka sources, which
Spark ignores. The application of the task is the launcher, which runs the job and commits each finished
batch. A gate then delays the tasks after it until the group is at the end of both topics.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.spark import launcher_path, spark_py_files

LAKE = os.environ.get("LAKE", "s3a://lake")

orders = KafkaPipeline(group_id="orders-union", topics=["orders-eu", "orders-us"])

with DAG(
    dag_id="union_sources",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:launcher]
    union = SparkSubmitOperator(
        task_id="union",
        application=launcher_path(),
        py_files=spark_py_files(),
        application_args=[
            str(Path(__file__).parent / "jobs" / "union_job.py"),
            "--bootstrap-servers",
            f"{{{{ conn.{orders.kafka_config_id}.extra_dejson['bootstrap.servers'] }}}}",
            "--checkpoint",
            f"{LAKE}/checkpoints/orders-union",
        ],
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        },
    )
    # --8<-- [end:launcher]

    # --8<-- [start:gate]
    gate = OffsetsReachedSensor(
        task_id="gate", target="latest", deferrable=True, poke_interval=10, timeout=600, **orders
    )
    # --8<-- [end:gate]

    @task
    def publish() -> None:
        """Placeholder for a task that needs both topics to be complete."""

    union >> gate >> publish()
