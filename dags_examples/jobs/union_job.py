"""Copy two topics into one, and stop. Each source names its consumer group."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--checkpoint", required=True)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("union").getOrCreate()

    # --8<-- [start:source]
    def orders_of(topic: str) -> DataFrame:
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            # Spark ignores this option; the launcher commits the query's finished batches to this group.
            .option("consumer.commit.groupid", "orders-union")
            .load()
        )

    both = orders_of("orders-eu").union(orders_of("orders-us"))
    # --8<-- [end:source]
    query = (
        both.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
        .option("topic", "orders")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
