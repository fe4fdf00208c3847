"""A batch of Livy on YARN, and the commit of what it has read."""

from __future__ import annotations

from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="livy",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "livy"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        # webhdfs and not hdfs, because a reset must be able to replace files.
        checkpoint_location="webhdfs://namenode:9870/checkpoints/orders",
    )

    job = LivyOperator(
        task_id="job",
        file="hdfs:///jobs/orders.py",
        conf=orders.spark_conf(),
        # Without polling_interval the task ends when Livy accepts the batch, and the commit comes too early.
        polling_interval=30,
    )

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
