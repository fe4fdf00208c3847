"""
The smallest example: one commit task after an existing Spark job.

The Spark job does not change. ``checkpoint_location`` is the location in the job's ``writeStream``.
"""

from __future__ import annotations

# --8<-- [start:dag]
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

# --8<-- [start:import]
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

# --8<-- [end:import]

with DAG(
    dag_id="commit_after_spark",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark"],
) as dag:
    # --8<-- [start:commit]
    spark = SparkSubmitOperator(task_id="spark", application="s3a://lake/jobs/orders.py")

    commit = CommitOffsetsOperator(
        task_id="commit",
        group_id="orders-etl",
        checkpoint_location="s3a://lake/checkpoints/orders",
    )

    spark >> commit
    # --8<-- [end:commit]
# --8<-- [end:dag]
