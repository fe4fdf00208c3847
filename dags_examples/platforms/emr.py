"""A step on an EMR cluster, and the commit of what it has read."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="emr",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "emr"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        checkpoint_location="s3://lake/checkpoints/orders",
        checkpoint_conn_id="aws_default",
    )

    job = EmrAddStepsOperator(
        task_id="job",
        job_flow_id="{{ var.value.emr_cluster }}",
        steps=[
            {
                "Name": "orders",
                "ActionOnFailure": "CONTINUE",
                "HadoopJarStep": {
                    "Jar": "command-runner.jar",
                    "Args": [
                        "spark-submit",
                        *("--deploy-mode", "cluster"),
                        *("--packages", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3"),
                        "s3://lake/jobs/orders.py",
                    ],
                },
            }
        ],
        # By default the task ends before the step does, and the commit comes too early.
        wait_for_completion=True,
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
