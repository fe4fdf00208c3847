"""A job on EMR Serverless and the commit of its offsets, without Spark on the Airflow worker."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="emr_serverless",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
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

    job = EmrServerlessStartJobOperator(
        task_id="job",
        application_id="{{ var.value.emr_application }}",
        execution_role_arn="{{ var.value.emr_role }}",
        job_driver={
            "sparkSubmit": {
                "entryPoint": "s3://lake/jobs/orders.py",
                "sparkSubmitParameters": (
                    "--packages org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3 "
                    f"{orders.spark_submit_parameters()}"
                ),
            }
        },
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
