"""
Read one bad day again beside the live pipeline: a window between two times, without a group.

Trigger this DAG with the two times. No offset moves, so ``planned_window`` may run meanwhile, unless both
write the same day: a day's file is replaced as a whole. The times select the same records in every run, once
each partition has a record at or after the end. If retention has deleted some of the records, the plan fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)
JOBS = Path(__file__).parent / "jobs"

with DAG(
    dag_id="replay_window",
    schedule=None,
    params={
        "since": Param("2013-01-02T00:00:00-05:00", type="string", format="date-time"),
        # A flight of the day may leave after midnight. The result of the next day's flights does not change.
        "until": Param("2013-01-03T06:00:00-05:00", type="string", format="date-time"),
    },
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:plan]
    plan = PlanOffsetWindowOperator(
        task_id="plan",
        topics=[os.environ.get("FLIGHTS_TOPIC", "flights")],
        start="{{ params.since }}",
        end="{{ params.until }}",
        on_empty="fail",
    )
    # --8<-- [end:plan]

    process = KafkaSparkSubmitOperator(
        task_id="process",
        kafka_config_id=plan.kafka_config_id,
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

    plan >> process
