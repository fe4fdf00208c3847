"""
Gates before and after a job that reads a window: the topic is complete, the group is fresh, the query moves.

The topic and the group come from the DAG's params, so that the DAG runs against any broker.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

with DAG(
    dag_id="gates",
    schedule=None,
    catchup=False,
    params={
        "topic": Param("orders", type="string"),
        "group": Param("orders-etl", type="string"),
        "until": Param("2026-01-02T00:00:00Z", type="string", format="date-time"),
    },
    tags=["kafka"],
) as dag:
    # --8<-- [start:complete]
    complete = TopicReachedSensor(
        task_id="complete",
        topics="{{ params.topic }}",
        target="{{ params.until }}",
        on_idle_partition="ignore",
        deferrable=True,
        poke_interval=10,
        timeout=3600,
    )
    # --8<-- [end:complete]

    @task
    def read() -> None:
        """Placeholder for the job that reads the topic's records up to this time."""

    # --8<-- [start:fresh]
    fresh = ConsumerGroupLagSensor(
        task_id="fresh",
        group_id="{{ params.group }}",
        topics="{{ params.topic }}",
        max_time_lag=timedelta(minutes=10),
        deferrable=True,
        poke_interval=10,
        timeout=3600,
    )
    # --8<-- [end:fresh]

    # --8<-- [start:stalled]
    moving = OffsetsReachedSensor(
        task_id="moving",
        group_id="{{ params.group }}",
        topics="{{ params.topic }}",
        target="{{ params.until }}",
        stalled_after="PT30M",
        soft_fail=True,
        deferrable=True,
        poke_interval=10,
        timeout=4 * 3600,
    )
    # --8<-- [end:stalled]

    complete >> read() >> [fresh, moving]
