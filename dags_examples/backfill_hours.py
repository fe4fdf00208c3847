"""
Process selected hours of a stream again, by a backfill over partitions.

The DAG runs at each full hour for the hour before. Airflow's backfill runs the DAG for the given hours::

    airflow backfill create --dag-id orders_again --from-date 2026-03-03T09:00 --to-date 2026-03-03T16:00

This reads the records from 9:00 to 17:00 again, in eight runs. No offsets move, so the stream's own
processing is not affected. Both dates are the starts of hours.

``CronPartitionTimetable`` needs Airflow 3.2 or later.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, ObjectStoragePath, get_current_context, task

from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator

LAKE = os.environ.get("LAKE", "s3://lake")
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")

# --8<-- [start:schedule]
# Runs at 15:00 for the hour that began at 14:00, whose key is 2026-03-03T14:00:00.
each_hour = CronPartitionTimetable("0 * * * *", timezone="UTC", run_offset=-1)
# --8<-- [end:schedule]

with DAG(
    dag_id="orders_again",
    schedule=each_hour,
    start_date=datetime(2026, 3, 1, tzinfo=timezone.utc),
    catchup=False,
    tags=["kafka", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:tasks]
    plan = PlanOffsetWindowOperator(task_id="plan", every="hour", topics=TOPIC, on_empty="continue")

    @task
    def process(window: dict[str, Any]) -> None:
        """Placeholder for the job that reads the window, such as the job of planned_window.py."""
        key = get_current_context()["dag_run"].partition_key
        file = ObjectStoragePath(LAKE) / "again" / f"{key}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"key": key, "records": window["records"]}))

    process(plan.output)
    # --8<-- [end:tasks]
