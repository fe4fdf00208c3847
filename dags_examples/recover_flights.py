"""
Process everything since a bad day again: group and checkpoint move back together, and Spark reads again.

Use this DAG when the job has written wrong results since some day. It moves the consumer group and the
checkpoint of ``daily_flights`` back to that time, runs the same PySpark job again, commits, compares group
and checkpoint, and waits until the group is at the end of the topic. If a task fails in between, both are
restored to their earlier offsets.

The bad day and **all later days** are read again, because a checkpoint has one position for all days. The job
overwrites, so later days have the same result as before; the last task compares each day before and after.

To run it manually, trigger it with ``since``. For a calendar day:
``airflow backfill create --dag-id recover_flights --from-date 2013-01-02 --to-date 2013-01-03``. If a
backfill has several days, the run of the earliest day processes all these days, and the other runs are
skipped. Pause ``daily_flights`` first: a checkpoint can have only one query.
"""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)

# --8<-- [start:pipeline]
# The same pipeline as in daily_flights.
flights = KafkaPipeline(
    group_id="flights-daily",
    topics=["flights"],
    checkpoint_location=f"{HOME}/checkpoint",
)
# --8<-- [end:pipeline]


def checksum(file: Path) -> dict[str, Any]:
    """Return the number of rows of a table, and a checksum of their content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, partitioning=None)
    except (pa.ArrowInvalid, OSError):
        return {"rows": 0, "checksum": "unreadable"}
    rows = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return {"rows": len(rows), "checksum": hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}


def days() -> dict[str, dict[str, Any]]:
    """Return the number of rows and the checksum of each day's table."""
    files = (HOME / "output" / "flights").glob("day=*/flights.parquet")
    return {file.parent.name.removeprefix("day="): checksum(file) for file in sorted(files)}


with DAG(
    dag_id="recover_flights",
    # Backfills need a schedule; scheduled runs are skipped.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=ZoneInfo("America/New_York")),
    catchup=False,
    max_active_runs=1,
    params={"since": Param("", type="string", title="Since", description="ISO 8601; empty for a backfill.")},
    tags=["example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:since]
    @task
    def since(
        params: Any = None, dag_run: Any = None, ti: Any = None, data_interval_start: datetime | None = None
    ) -> str:
        """Return the time to move back to: the parameter, or the beginning of the backfilled day."""
        if params["since"]:
            return str(params["since"])
        if dag_run.run_type != "backfill" or data_interval_start is None:
            raise AirflowSkipException("Nothing to recover: trigger with since, or create a backfill")
        # The runs of one backfill may be active together, but only one run may move the group.
        for state in ("running", "queued"):
            earlier = ti.get_previous_dagrun(state=state)
            if earlier is not None:
                raise AirflowSkipException(f"{earlier.run_id} reads this day too")
        return data_interval_start.isoformat()

    # --8<-- [end:since]

    @task
    def before() -> dict[str, Any]:
        """Return rows and checksum of each day before anything is moved."""
        return days()

    # --8<-- [start:recover]
    reset = ResetOffsetsOperator(task_id="reset", to_datetime=since(), retries=3, **flights)

    process = KafkaSparkSubmitOperator(
        task_id="process",
        kafka_config_id=flights.kafka_config_id,
        application=str(Path(__file__).parent / "jobs" / "flights_job.py"),
        py_files=spark_py_files(),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        conf={
            **flights.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        application_args=[
            "--output",
            f"{HOME}/output",
        ],
    )

    commit = CommitOffsetsOperator(task_id="commit", outlets=flights.assets, retries=3, **flights)
    check = CheckOffsetDriftOperator(task_id="check", **flights)
    gate = OffsetsReachedSensor(
        task_id="gate", target="{{ dag_run.run_after }}", poke_interval=5, timeout=600, **flights
    )

    # A failed Spark job leaves an unfinished batch. The job overwrites, so Spark may use its batch id again.
    restore = RestoreOffsetsOperator(
        task_id="restore",
        receipt=reset.output,
        on_pending_batch="discard",
        idempotent_sink=True,
        retries=3,
        **flights,
    )
    # --8<-- [end:recover]

    @task
    def compare(before: dict[str, Any]) -> dict[str, Any]:
        """Print rows and checksum of each day before and after."""
        after = days()
        for day, found in after.items():
            was = before.get(day, {"rows": 0, "checksum": "not there"})
            same = "same" if was == found else "corrected"
            print(
                f"{day}: {was['rows']} rows {was['checksum']} -> {found['rows']} rows {found['checksum']}: "
                f"{same}"
            )
        return {"before": before, "after": after}

    looked = before()
    # --8<-- [start:order]
    looked >> reset >> process >> commit >> check >> gate >> compare(looked)
    gate >> restore.as_teardown(setups=reset)
    # --8<-- [end:order]
