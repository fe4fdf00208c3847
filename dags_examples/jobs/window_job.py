"""
Read the flights of the planned window, and write them by day.

The job names no offsets: the window is in the session's configuration, from ``plan.spark_conf()``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flights_job import parse, write_days
from pyspark.sql import SparkSession

from airflow_kafka_offsets.spark import reading_window, spark_kafka_options


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("flights of a window").getOrCreate()
    # --8<-- [start:read]
    # Fails at the end if retention has deleted records of the window, which must not be committed then.
    with reading_window(spark, options=spark_kafka_options()) as records:
        write_days(arguments.output, parse(records))
    # --8<-- [end:read]
    spark.stop()


if __name__ == "__main__":
    main()
