"""Copy orders with a changed query: from a new checkpoint, after the last batch of the old checkpoint."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from airflow_kafka_offsets.spark import SparkCheckpoint, starting_offsets


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--old-checkpoint", required=True)
    parser.add_argument("--checkpoint", required=True)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("orders").getOrCreate()
    options = {"kafka.bootstrap.servers": arguments.bootstrap_servers}
    # --8<-- [start:start]
    old, new = SparkCheckpoint(arguments.old_checkpoint), SparkCheckpoint(arguments.checkpoint)
    # Once the new checkpoint has a batch, it says where the query continues.
    begin = {"subscribe": "orders"}
    if not new.batches("offsets"):
        begin = starting_offsets(old, checkpoint=new, options=options, spark=spark)
    stream = spark.readStream.format("kafka").options(**options, **begin).load()
    # --8<-- [end:start]
    query = (
        stream.select("key", "value")
        .writeStream.format("kafka")
        .options(**options)
        .option("topic", "orders-copy")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
