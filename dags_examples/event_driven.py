"""
Spark runs when there are enough records: as soon as 10,000 records are unread, and at least once a day.

A trigger checks the lag of the consumer group. When 10,000 records are unread, Airflow starts a run: a
PySpark job reads all new records and stops, and its offsets are committed to the group. So the lag falls, and
the trigger waits for the next 10,000 records. In addition, there is a run every night.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Asset, AssetWatcher, task

try:
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.assets import AssetOrTimeSchedule  # type: ignore[assignment]
    from airflow.timetables.trigger import CronTriggerTimetable  # type: ignore[assignment]

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.triggers.event import LagEventTrigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --8<-- [start:schedule]
LAKE = os.environ.get("LAKE", "s3a://lake")
POLL_INTERVAL = float(os.environ.get("POLL_INTERVAL", "60"))

clicks = KafkaPipeline(group_id="clicks", topics=["clicks"], checkpoint_location=f"{LAKE}/checkpoints/clicks")

backlog = Asset(
    "clicks_backlog",
    watchers=[
        AssetWatcher(
            name="ten_thousand_wait",
            trigger=LagEventTrigger(
                **clicks,
                min_lag=10_000,
                refire_after=timedelta(minutes=15),
                poll_interval=POLL_INTERVAL,
            ),
        )
    ],
)

daily_at_the_latest = AssetOrTimeSchedule(
    # timedelta() instead of False: with False Airflow may still run a new DAG at once.
    timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC", run_immediately=timedelta()),
    assets=[backlog],
)
# --8<-- [end:schedule]

with DAG(
    dag_id="event_driven",
    schedule=daily_at_the_latest,
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:tasks]
    @task.pyspark(
        conn_id="spark_default",
        config_kwargs={
            "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        },
    )
    def spark(spark: SparkSession) -> None:
        """Write the new clicks to the lake and stop."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
        from airflow_kafka_offsets.spark import spark_kafka_options

        connection = KafkaOffsetsHook(clicks.kafka_config_id)
        records = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(connection.client_config()))
            .option("subscribe", "clicks")
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            records.selectExpr("CAST(value AS STRING) AS click", "timestamp")
            .writeStream.format("parquet")
            .option("path", f"{LAKE}/clicks")
            .option("checkpointLocation", clicks.checkpoint_location)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    commit = CommitOffsetsOperator(task_id="commit", outlets=[clicks.asset], **clicks)

    spark() >> commit  # type: ignore[call-arg, misc]  # Airflow passes spark
    # --8<-- [end:tasks]
