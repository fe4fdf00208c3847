"""One DAG catches up when it runs, and one does nothing about what wakes it."""

from __future__ import annotations

import os

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.triggers.event import LagEventTrigger

TOPIC, GROUP = os.environ["CROSSINGS_TOPIC"], os.environ["CROSSINGS_GROUP"]
IDLE_TOPIC, IDLE_GROUP = os.environ["IDLE_TOPIC"], os.environ["IDLE_GROUP"]

backlog = Asset(
    "backlog",
    watchers=[
        AssetWatcher(
            name="lag",
            trigger=LagEventTrigger(group_id=GROUP, topics=[TOPIC], min_lag=100, poll_interval=1),
        )
    ],
)
idle_backlog = Asset(
    "idle_backlog",
    watchers=[
        AssetWatcher(
            name="lag",
            trigger=LagEventTrigger(
                group_id=IDLE_GROUP,
                topics=[IDLE_TOPIC],
                min_lag=100,
                poll_interval=1,
                refire_after=float(os.environ["REFIRE_AFTER"]),
            ),
        )
    ],
)

with DAG("crossings", schedule=[backlog], max_active_runs=1):

    @task
    def catch_up() -> int:
        """Commit the log end."""
        with KafkaOffsetsHook().get_offsets_client() as client:
            partitions = [TopicPartition(TOPIC, number) for number in client.partitions([TOPIC])[TOPIC]]
            ends = {tp: log.end for tp, log in client.log_ranges(partitions).items()}
            client.commit(GROUP, ends)
        return sum(ends.values())

    catch_up()

with DAG("idle", schedule=[idle_backlog], max_active_runs=1):

    @task
    def look() -> None:
        """Leave the backlog as it is."""

    look()
