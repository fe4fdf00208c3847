"""Hours without partitions at run time: one event for all hours of a run, and a DAG that reads it."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator

hours = Asset("hours")
topic = os.environ.get("ORDERS_TOPIC", "orders")

with DAG(dag_id="emits", schedule=None, catchup=False) as dag:
    CompletedIntervalsOperator(
        task_id="complete", outlets=[hours], group_id=topic, topics=topic, start_from="2026-03-01T00:00:00Z"
    )

with DAG(dag_id="reads", schedule=[hours], catchup=False):

    @task
    def told(triggering_asset_events: Any = None) -> list[str]:
        """Return the keys of the intervals in the events that have started this run."""
        events = [event for each in triggering_asset_events.values() for event in each]
        return [interval["key"] for event in events for interval in event.extra["intervals"]]

    told()
