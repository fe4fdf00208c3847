"""
Departures are counted in a database exactly once, although each batch adds to the existing rows.

If Spark ran a batch again, its flights would be counted twice. So the job saves the offsets of the batch in
the same transaction that adds the counts. If Spark runs a batch again after a crash, the job finds its
offsets in the database and does not add the counts again.

The group then gets the offsets in the database, so it shows which records were counted.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, BaseHook
from airflow.sdk.log import mask_secret
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)
NEW_YORK = ZoneInfo("America/New_York")

# The same topic as in daily_flights.py.
departures = KafkaPipeline(
    group_id="flights-counted",
    topics=["flights"],
    checkpoint_location=f"{HOME}/counted/checkpoint",
)


def database_url(conn_id: str) -> str:
    """Return a connection as SQLAlchemy's URL, and let Airflow mask it in rendered fields and logs."""
    url = str(BaseHook.get_hook(conn_id).sqlalchemy_url.render_as_string(hide_password=False))
    # Airflow masks the password itself, which is not in the URL if a character such as @ is escaped there.
    mask_secret(url)
    return url


with DAG(
    dag_id="exactly_once",
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=NEW_YORK),
    catchup=False,
    max_active_runs=1,
    user_defined_macros={"database_url": database_url},
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:count]
    count = KafkaSparkSubmitOperator(
        task_id="count",
        kafka_config_id=departures.kafka_config_id,
        application=str(Path(__file__).parent / "jobs" / "exactly_once_job.py"),
        py_files=spark_py_files(),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        # In the environment, because every user of the machine can see a command line.
        env_vars={"DATABASE_URL": "{{ database_url('departures') }}"},
        conf={
            **departures.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    # --8<-- [end:count]

    # --8<-- [start:publish]
    # The offsets that the job saved in the database under the group's name, not those of the checkpoint.
    publish = CommitOffsetsOperator(
        task_id="publish", store_conn_id="departures", outlets=departures.assets, **departures
    )
    # --8<-- [end:publish]

    count >> publish
