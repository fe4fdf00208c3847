"""The end of "Getting started": a Spark job that exists already, with a commit and a gate after it."""

from __future__ import annotations

# --8<-- [start:dag]
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_kafka_offsets import CommitOffsetsOperator, KafkaPipeline, OffsetsReachedSensor

payments = KafkaPipeline(
    group_id="payments-etl",
    topics=["payments"],
    checkpoint_location="s3a://lake/checkpoints/payments",
)

with DAG("payments", schedule=None, max_active_runs=1) as dag:
    job = SparkSubmitOperator(
        task_id="job",
        application="jobs/payments.py",
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    )

    commit = CommitOffsetsOperator(task_id="commit", **payments)

    gate = OffsetsReachedSensor(task_id="gate", target="latest", timeout=60, **payments)

    job >> commit >> gate
# --8<-- [end:dag]
