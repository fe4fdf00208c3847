"""
Process one bad day again: a batch over that day's offsets, beside the live pipeline.

Use this DAG when one day is wrong and the later days are right. No group and no checkpoint moves, so there is
nothing to undo, and ``daily_flights`` may run meanwhile. The offsets of the day are looked up by time, and
Spark reads exactly these records, once, as a batch.

A flight has the time at which it left, so records of a day may come after the first records of the next day.
So the range is from ``EARLY`` before the day until ``LATE`` after it, and the job keeps the rows of the day.

To run it manually, trigger it with ``day``. For several days: ``airflow backfill create --dag-id one_bad_day
--from-date 2013-01-02 --to-date 2013-01-03``.
"""

from __future__ import annotations

import os
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)
NEW_YORK = ZoneInfo("America/New_York")
EARLY, LATE = timedelta(hours=1), timedelta(days=1)

with DAG(
    dag_id="one_bad_day",
    # Backfills need a schedule; scheduled runs are skipped.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=NEW_YORK),
    catchup=False,
    max_active_runs=1,
    params={"day": Param("", type="string", title="Day", description="2013-01-02; empty for a backfill.")},
    tags=["example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:range]
    @task
    def offsets_of_day(
        params: Any = None, dag_run: Any = None, data_interval_start: datetime | None = None
    ) -> dict[str, Any]:
        """Return the day and the offsets of its records, in the format of Spark's options."""
        if params["day"]:
            day = date.fromisoformat(params["day"])
        elif dag_run.run_type == "backfill" and data_interval_start is not None:
            day = data_interval_start.astimezone(NEW_YORK).date()
        else:
            raise AirflowSkipException("Nothing to do: trigger with day, or create a backfill")
        midnight = datetime(day.year, day.month, day.day, tzinfo=NEW_YORK)
        hook = KafkaOffsetsHook()
        start = hook.offsets_for_time("flights", midnight - EARLY)
        end = hook.offsets_for_time("flights", midnight + timedelta(days=1) + LATE)
        return {"day": day.isoformat(), "starting_offsets": start, "ending_offsets": end}

    # --8<-- [end:range]

    # --8<-- [start:process]
    process = KafkaSparkSubmitOperator(
        task_id="process",
        application=str(Path(__file__).parent / "jobs" / "flights_day_job.py"),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        py_files=f"{spark_py_files()},{Path(__file__).parent / 'jobs' / 'flights_job.py'}",
        application_args=[
            "--output",
            f"{HOME}/output",
            "--range",
            "{{ ti.xcom_pull(task_ids='offsets_of_day') | tojson }}",
        ],
    )
    # --8<-- [end:process]

    @task
    def look(found: dict[str, Any]) -> dict[str, Any]:
        """Print how many rows the day has now."""
        import pyarrow.parquet as pq

        file = HOME / "output" / "flights" / f"day={found['day']}" / "flights.parquet"
        rows = pq.read_table(file, partitioning=None).num_rows
        print(f"{found['day']}: {rows} rows")
        return {"day": found["day"], "rows": rows}

    found = offsets_of_day()
    found >> process >> look(found)
