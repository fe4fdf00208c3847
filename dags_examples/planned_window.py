"""
A day's records, planned once and read as one batch, with a consumer group instead of a checkpoint.

``plan`` determines which records the run reads: from the group's position until the first record of the next
day. The job reads exactly these records. ``commit`` then moves the group to their end, if the group is still
at their start. So the next run reads the records of a failed day, a day that runs twice is not counted twice,
and two runs never share a record.

A flight that leaves after midnight is in the topic with the next day's records, and so in the next window.
The job writes by the scheduled day, and only replaces the rows of the records that it has read, so that each
day is complete in the end.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)
JOBS = Path(__file__).parent / "jobs"

flights = KafkaPipeline(group_id="flights-planned", topics=[os.environ.get("FLIGHTS_TOPIC", "flights")])

with DAG(
    dag_id="planned_window",
    # In Airflow 3 the data intervals of a plain cron string have no length, so there would be no window.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=ZoneInfo("America/New_York")),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:plan]
    plan = PlanOffsetWindowOperator(
        task_id="plan", start="committed", end="{{ data_interval_end }}", on_no_commit="earliest", **flights
    )
    # --8<-- [end:plan]

    # --8<-- [start:process]
    process = KafkaSparkSubmitOperator(
        task_id="process",
        kafka_config_id=flights.kafka_config_id,
        application=str(JOBS / "window_job.py"),
        py_files=f"{spark_py_files()},{JOBS / 'flights_job.py'}",
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        conf={
            **plan.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        application_args=[
            "--output",
            f"{HOME}/planned",
        ],
    )
    # --8<-- [end:process]

    # --8<-- [start:commit]
    commit = CommitOffsetWindowOperator(
        task_id="commit", window=plan.output, outlets=flights.assets, **flights
    )
    # --8<-- [end:commit]

    plan >> process >> commit
