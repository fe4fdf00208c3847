"""
Read the flights that are new in the topic, write them by day, and stop.

A batch may hold a part of a day, and may run twice after a crash. So it never appends: it reads the days it
touches, puts its own rows beside what is there, drops what it finds twice (a record is its partition and
offset) and writes each day whole. Running a batch again gives the same files, row for row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SCHEMA = "id long, day string, event_time timestamp, carrier string, flight int, origin string, dest string, dep_delay double"


def replace_file(frame: DataFrame, target: Path) -> None:
    """Write a small frame as one Parquet file that is there whole or not at all."""
    staging = target.parent.parent / f".{target.parent.name}.{target.stem}.tmp"
    frame.coalesce(1).write.mode("overwrite").parquet(str(staging))
    (part,) = staging.glob("part-*.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, target)  # noqa: PTH105
    shutil.rmtree(staging)


def write_days(output: Path, batch: DataFrame) -> None:
    """Write every day of which the batch has a record."""
    batch = batch.persist()
    for row in batch.select("day").distinct().sort("day").collect():
        day = row["day"]
        target = output / "flights" / f"day={day}" / "flights.parquet"
        rows = batch.where(f.col("day") == day)
        if target.exists():
            rows = rows.unionByName(batch.sparkSession.read.parquet(str(target)))
        rows = (
            rows.dropDuplicates(["partition", "offset"])
            .coalesce(1)
            .sortWithinPartitions("partition", "offset")
            .persist()
        )
        replace_file(rows, target)
        by_airport = rows.groupBy("origin").agg(
            f.count("*").alias("flights"), f.round(f.avg("dep_delay"), 2).alias("mean_delay")
        )
        replace_file(by_airport.sort("origin"), output / "summary" / f"day={day}" / "summary.parquet")
        rows.unpersist()
    batch.unpersist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("flights").getOrCreate()
    # The DAG's pipeline.spark_conf() brings topics and checkpoint here: one place names them.
    pipeline = json.loads(spark.conf.get("spark.kafka_offsets.pipeline"))
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
        .option("subscribe", ",".join(pipeline["topics"]))
        .option("startingOffsets", "earliest")
        .load()
        .select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("event"), "partition", "offset")
        .select("event.*", "partition", "offset")
    )
    query = (
        events.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", pipeline["checkpoint_location"])
        .foreachBatch(lambda batch, _: write_days(arguments.output, batch))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
