"""
A day's records are written to a table, and the group moves only after an audit has proved the table complete.

``plan`` determines which records the run reads. ``load`` writes them to a table of a database, with topic,
partition and offset in columns. ``audit`` checks that the table contains each record of the window exactly
once. If a record is lost or duplicated, ``audit`` fails and ``commit`` does not run. The group is then still
at the start of the window, so the same records are read again when ``load`` is cleared.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, BaseHook
from airflow.sdk.log import mask_secret
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.spark import spark_py_files

JOBS = Path(__file__).parent / "jobs"

flights = KafkaPipeline(group_id="flights-audited", topics=[os.environ.get("FLIGHTS_TOPIC", "flights")])


def database_url(conn_id: str) -> str:
    """Return a connection as SQLAlchemy's URL, and let Airflow mask it in rendered fields and logs."""
    url = str(BaseHook.get_hook(conn_id).sqlalchemy_url.render_as_string(hide_password=False))
    # Airflow masks the password itself, which is not in the URL if a character such as @ is escaped there.
    mask_secret(url)
    return url


with DAG(
    dag_id="audited_window",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=ZoneInfo("America/New_York")),
    catchup=False,
    max_active_runs=1,
    user_defined_macros={"database_url": database_url},
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    plan = PlanOffsetWindowOperator(
        task_id="plan", start="committed", end="{{ data_interval_end }}", on_no_commit="earliest", **flights
    )

    load = KafkaSparkSubmitOperator(
        task_id="load",
        kafka_config_id=flights.kafka_config_id,
        application=str(JOBS / "audited_job.py"),
        py_files=spark_py_files(),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        # In the environment, because every user of the machine can see a command line.
        env_vars={"DATABASE_URL": "{{ database_url('lake') }}", "RUN_ID": "{{ run_id }}"},
        conf={
            **plan.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )

    # --8<-- [start:audit]
    audit = AuditWindowOperator(
        task_id="audit",
        window=plan.output,
        conn_id="lake",
        table="flights_bronze",
        where={"run_id": "{{ run_id }}"},
        **flights,
    )
    # --8<-- [end:audit]

    # --8<-- [start:commit]
    commit = CommitOffsetWindowOperator(
        task_id="commit", window=plan.output, outlets=flights.assets, **flights
    )
    plan >> load >> audit >> commit
    # --8<-- [end:commit]
