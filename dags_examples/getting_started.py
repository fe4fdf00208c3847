"""
The DAG of "Getting started": orders go through Kafka and Spark, and a consumer group follows.

The DAG runs on one machine, with the Kafka that ``airflow-kafka-offsets kafka start`` starts.
"""

# --8<-- [start:dag]
import json
import os
from pathlib import Path
from typing import Any

from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook
from airflow.providers.apache.kafka.hooks.produce import KafkaProducerHook
from airflow.sdk import DAG, task

from airflow_kafka_offsets import CommitOffsetsOperator, KafkaOffsetsHook, KafkaPipeline, OffsetsReachedSensor
from airflow_kafka_offsets.spark import spark_kafka_options

LAKE = Path(os.environ["AIRFLOW_HOME"]) / "lake"

coffee = KafkaPipeline(
    group_id="coffee-etl",
    topics=["coffee"],
    checkpoint_location=f"{LAKE}/checkpoints/coffee",
)

with DAG("coffee", schedule=None, max_active_runs=1) as dag:

    @task
    def produce() -> None:
        """Write 100 orders to the topic, as a shop would."""
        KafkaAdminClientHook().create_topic([("coffee", 3, 1)])
        producer = KafkaProducerHook().get_producer()
        for number in range(100):
            producer.produce("coffee", json.dumps({"order": number, "item": "espresso"}))
        producer.flush()

    @task.pyspark(
        conn_id="spark_default",
        config_kwargs={"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"},
    )
    def copy(spark: Any = None) -> None:
        """Copy the new orders to Parquet files, and stop."""
        query = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(KafkaOffsetsHook().client_config()))
            .option("subscribe", "coffee")
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("parquet")
            .option("path", f"{LAKE}/coffee")
            .option("checkpointLocation", coffee.checkpoint_location)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    commit = CommitOffsetsOperator(task_id="commit", **coffee)

    gate = OffsetsReachedSensor(task_id="gate", target="latest", timeout=60, **coffee)

    @task
    def publish() -> None:
        """Placeholder for a task that needs all orders."""

    produce() >> copy() >> commit >> gate >> publish()
# --8<-- [end:dag]
