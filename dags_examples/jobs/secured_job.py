"""Append a topic's new records to files, and stop. Kafka's address and credentials come from the DAG."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from airflow_kafka_offsets.spark import spark_kafka_options


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("payments").getOrCreate()
    # --8<-- [start:source]
    payments = (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options())
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    # --8<-- [end:source]
    query = (
        payments.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("text")
        .option("path", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
