"""
Read the flights of one day from the topic, as a batch of fixed offsets, and write the whole day.

The earlier content of the day's files is not read, so wrong results are replaced.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flights_job import parse, write_day
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from airflow_kafka_offsets.spark import spark_kafka_options


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--range", required=True, type=json.loads)
    arguments = parser.parse_args()
    day, start, end = (arguments.range[name] for name in ("day", "starting_offsets", "ending_offsets"))

    spark = SparkSession.builder.appName(f"flights of {day}").getOrCreate()
    # --8<-- [start:read]
    records = (
        spark.read.format("kafka")
        .options(**spark_kafka_options())
        .option(
            "assign",
            json.dumps({topic: [int(number) for number in numbers] for topic, numbers in start.items()}),
        )
        .option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
        .load()
    )
    rows = parse(records).where(f.col("day") == day)
    if rows.isEmpty():
        raise SystemExit(f"no flight of {day} is in these offsets: nothing was written")
    write_day(arguments.output, day, rows)
    # --8<-- [end:read]
    spark.stop()


if __name__ == "__main__":
    main()
