"""
A Spark job that reads a secured Kafka with the credentials of the Airflow connection.

The connection is defined once, with librdkafka's settings. The operators of this package use it directly.
``KafkaSparkSubmitOperator`` passes it to the job as options of Spark's Kafka source, in a file that only this
user can read. LAKE comes from the environment.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.spark import spark_py_files

LAKE = os.environ.get("LAKE", "s3a://lake")
TOPIC = os.environ.get("PAYMENTS_TOPIC", "payments")
CHECKPOINT = f"{LAKE}/checkpoints/payments-secured"

payments = KafkaPipeline(group_id="payments-secured", topics=[TOPIC], checkpoint_location=CHECKPOINT)

with DAG(
    dag_id="secured_spark",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:process]
    process = KafkaSparkSubmitOperator(
        task_id="process",
        kafka_config_id=payments.kafka_config_id,
        application=str(Path(__file__).parent / "jobs" / "secured_job.py"),
        py_files=spark_py_files(),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        application_args=[
            *("--topic", TOPIC),
            *("--checkpoint", CHECKPOINT),
            *("--output", f"{LAKE}/payments"),
        ],
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        },
    )
    # --8<-- [end:process]

    commit = CommitOffsetsOperator(task_id="commit", outlets=payments.assets, **payments)

    process >> commit
