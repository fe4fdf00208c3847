"""
A run for each million records of a stream that never pauses.

The listener commits the query's group, ``clicks-etl``, while the query runs, so it is never far behind.
A second group, ``clicks-report``, marks the end of the last report. Its lag counts the records since then.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.triggers.event import LagEventTrigger

MILLION = 1_000_000

# --8<-- [start:dag]
stream = KafkaPipeline(group_id="clicks-etl", topics=["clicks"])
report = KafkaPipeline(group_id="clicks-report", topics=["clicks"])

a_million = Asset(
    "a_million_clicks",
    watchers=[AssetWatcher(name="lag", trigger=LagEventTrigger(**report, min_lag=MILLION))],
)

with DAG("million_records", schedule=[a_million], catchup=False, max_active_runs=1) as dag:
    plan = PlanOffsetWindowOperator(
        task_id="plan", end="latest", max_records=MILLION, on_no_commit="earliest", **report
    )

    # The query has written them: its group is at the end of the window.
    written = OffsetsReachedSensor(
        task_id="written",
        target="{{ ti.xcom_pull(task_ids='plan')['end'] | tojson }}",
        deferrable=True,
        poke_interval=30,
        timeout=3600,
        **stream,
    )

    @task
    def make_report(window: dict[str, Any]) -> None:
        """Stand for work on these records in the table."""
        print(window["records"], window["start"], window["end"])

    commit = CommitOffsetWindowOperator(task_id="commit", window=plan.output, **report)

    plan >> written >> make_report(plan.output) >> commit  # type: ignore[arg-type]
# --8<-- [end:dag]
