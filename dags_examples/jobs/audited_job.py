"""
Write the records of the planned window into a table, each with its topic, partition and offset.

The rows of a run replace the rows that an earlier try of the run has written.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.spark import reading_window, spark_kafka_options

CREATE = text(
    "CREATE TABLE IF NOT EXISTS flights_bronze "
    '(topic TEXT, partition INTEGER, "offset" BIGINT, value TEXT, run_id TEXT)'
)
DELETE = text("DELETE FROM flights_bronze WHERE run_id = :run_id")
INSERT = text("INSERT INTO flights_bronze VALUES (:topic, :partition, :offset, :value, :run_id)")


def main() -> None:
    run_id = os.environ["RUN_ID"]
    engine = create_engine(os.environ["DATABASE_URL"])
    spark = SparkSession.builder.appName("flights of a window, into a table").getOrCreate()
    # --8<-- [start:write]
    with reading_window(spark, options=spark_kafka_options()) as records, engine.begin() as connection:
        connection.execute(CREATE)
        connection.execute(DELETE, {"run_id": run_id})
        columns = ("topic", "partition", "offset", "CAST(value AS STRING) AS value")
        rows = [row.asDict() | {"run_id": run_id} for row in records.selectExpr(*columns).collect()]
        if rows:
            connection.execute(INSERT, rows)
    # --8<-- [end:write]
    spark.stop()


if __name__ == "__main__":
    main()
