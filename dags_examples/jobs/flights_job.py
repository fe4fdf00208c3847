"""
Read the topic's new flights, write them by day, and stop.

A batch may contain a part of a day, and may run twice after a crash. So the job never appends: it reads the
days of the batch's records, replaces the rows of these records (identified by partition and offset), keeps
the other rows, and writes each whole day. Running a batch again gives the same files, row for row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_kafka_offsets.spark import spark_kafka_options

SCHEMA = (
    "id long, day string, event_time timestamp, carrier string, flight int, origin string, dest string, "
    "dep_delay double"
)


def replace_file(frame: DataFrame, target: Path) -> None:
    """Write a small frame as one Parquet file, atomically."""
    staging = target.parent.parent / f".{target.parent.name}.{target.stem}.tmp"
    frame.coalesce(1).write.mode("overwrite").parquet(str(staging))
    (part,) = staging.glob("part-*.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, target)  # noqa: PTH105
    shutil.rmtree(staging)


def parse(records: DataFrame) -> DataFrame:
    """Return the flights in the topic's records, each with its partition and offset."""
    event = f.from_json(f.col("value").cast("string"), SCHEMA).alias("event")
    return records.select(event, "partition", "offset").select("event.*", "partition", "offset")


def write_day(output: Path, day: str, rows: DataFrame) -> None:
    """Write a whole day: its flights, and a summary by airport."""
    rows = rows.coalesce(1).sortWithinPartitions("partition", "offset").persist()
    replace_file(rows, output / "flights" / f"day={day}" / "flights.parquet")
    by_airport = rows.groupBy("origin").agg(
        f.count("*").alias("flights"), f.round(f.avg("dep_delay"), 2).alias("mean_delay")
    )
    replace_file(by_airport.sort("origin"), output / "summary" / f"day={day}" / "summary.parquet")
    rows.unpersist()


def write_days(output: Path, batch: DataFrame) -> None:
    """Write every day that the batch has a record of, together with the day's existing rows."""
    batch = batch.persist()
    for row in batch.select("day").distinct().sort("day").collect():
        target = output / "flights" / f"day={row['day']}" / "flights.parquet"
        rows = batch.where(f.col("day") == row["day"])
        if target.exists():
            there = batch.sparkSession.read.parquet(str(target))
            # A record that is read again replaces its earlier row.
            rows = rows.unionByName(there.join(rows, ["partition", "offset"], "left_anti"))
        write_day(output, row["day"], rows)
    batch.unpersist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("flights").getOrCreate()
    # The DAG's pipeline.spark_conf() passes topics and checkpoint, so they are named in one place only.
    pipeline = json.loads(spark.conf.get("spark.kafkaOffsets.pipeline"))
    events = (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options())
        .option("subscribe", ",".join(pipeline["topics"]))
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        parse(events)
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", pipeline["checkpoint_location"])
        .foreachBatch(lambda batch, _: write_days(arguments.output, batch))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
