"""
A stream fills hours and days, and a job runs for each hour and day as soon as it is complete.

A Spark query writes orders all day. Every five minutes ``orders_stream`` checks the query's progress, and
emits events for the hours and days that are complete. Airflow starts ``orders_hourly`` for each of these
hours, and ``orders_daily`` for each day. After a reset, the jobs run again for the hours and days that the
query reads again.

``orders_daily_rollup`` uses Airflow's own rollup from hours to a day: it waits for all 24 hours, and runs
once for each day. If only some of the hours run again, it waits for the others forever. A day that must run
again with its hours needs a separate asset, such as the asset of ``orders_daily``.

Asset partitions that are named at run time need Airflow 3.3 or later.
"""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    DayWindow,
    ObjectStoragePath,
    PartitionedAssetTimetable,
    RollupMapper,
    StartOfDayMapper,
    get_current_context,
    task,
)

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

# --8<-- [start:names]
LAKE = os.environ.get("LAKE", "s3://lake")

orders = KafkaPipeline(
    group_id=os.environ.get("ORDERS_GROUP", "orders"),
    topics=[os.environ.get("ORDERS_TOPIC", "orders")],
    checkpoint_location=f"{LAKE}/checkpoints/orders",
)
hours, days = Asset("orders_hours"), Asset("orders_days")
# --8<-- [end:names]

with DAG(
    dag_id="orders_stream",
    schedule="*/5 * * * *",
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:stream]
    commit = CommitOffsetsOperator(task_id="commit", **orders)

    complete = CompletedIntervalsOperator(
        task_id="complete",
        every=["hour", "day"],
        outlets=[hours, days],
        start_from=os.environ.get("START_FROM", "2026-03-01T00:00:00+00:00"),
        **orders,
    )

    commit >> complete
    # --8<-- [end:stream]


@task
def publish(window: dict[str, Any], directory: str) -> None:
    """Placeholder for the job that reads the window, such as the job of planned_window.py."""
    key = get_current_context()["dag_run"].partition_key
    file = ObjectStoragePath(directory) / f"{key}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"key": key, "records": window["records"]}))


# --8<-- [start:hourly]
with DAG(
    dag_id="orders_hourly",
    schedule=PartitionedAssetTimetable(assets=hours),
    catchup=False,
    tags=["kafka", "example"],
):
    # From the first record of this run's hour until the first record of the next hour.
    hour = PlanOffsetWindowOperator(task_id="plan", every="hour", topics=orders.topics, on_empty="continue")
    publish(hour.output, f"{LAKE}/hours")
# --8<-- [end:hourly]

# --8<-- [start:daily]
with DAG(
    dag_id="orders_daily",
    schedule=PartitionedAssetTimetable(assets=days),
    catchup=False,
    tags=["kafka", "example"],
):
    day = PlanOffsetWindowOperator(task_id="plan", every="day", topics=orders.topics, on_empty="continue")
    publish(day.output, f"{LAKE}/days")
# --8<-- [end:daily]

# --8<-- [start:rollup]
with DAG(
    dag_id="orders_daily_rollup",
    schedule=PartitionedAssetTimetable(
        assets=hours,
        default_partition_mapper=RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow()),
    ),
    catchup=False,
    tags=["kafka", "example"],
):

    @task
    def summarize() -> None:
        """Placeholder for a job that reads the hours' results; the key of its run is the day."""

    summarize()
# --8<-- [end:rollup]
