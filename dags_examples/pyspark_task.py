"""
A stream inside an Airflow task: ``@task.pyspark`` provides the session, ``committing`` commits to the group.

The task reads the new records of the topic, counts the orders of each shop, and stops. Each finished batch is
committed to the group that the source names. If a commit fails, the task fails too, after the query has
ended. The task's retry only commits: the records are already read, so it returns no counts. A real job writes
the counts in ``count``, and must allow for a batch that is written twice.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE = os.environ.get("LAKE", "s3a://lake")

shops = KafkaPipeline(
    group_id="shops", topics=["shop-orders"], checkpoint_location=f"{LAKE}/checkpoints/shops"
)

with DAG(
    dag_id="pyspark_task",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "example"],
    doc_md=__doc__,
) as dag:
    # --8<-- [start:task]
    @task.pyspark(
        conn_id="spark_default",
        config_kwargs={
            "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        },
    )
    def count_orders(spark: SparkSession) -> dict[str, Any]:
        """Count the new orders of each shop, batch by batch."""
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
        from airflow_kafka_offsets.spark import committing, spark_kafka_options

        connection = KafkaOffsetsHook(shops.kafka_config_id)
        counted: dict[str, int] = {}

        def count(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001
            for row in batch.groupBy(batch.key.cast("string").alias("shop")).count().collect():
                counted[row["shop"]] = counted.get(row["shop"], 0) + row["count"]

        orders = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(connection.client_config()))
            .option("subscribe", "shop-orders")
            .option("startingOffsets", "earliest")
            .option("consumer.commit.groupid", shops.group_id)
            .load()
        )
        with committing(spark, raise_errors=True):
            query = (
                orders.writeStream.foreachBatch(count)
                .option("checkpointLocation", shops.checkpoint_location)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        return counted

    # --8<-- [end:task]

    caught_up = ConsumerGroupLagSensor(
        task_id="caught_up", max_lag=1_000, deferrable=True, poke_interval=10, timeout=600, **shops
    )

    count_orders() >> caught_up  # type: ignore[call-arg, misc]  # Airflow passes spark
