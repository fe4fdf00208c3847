"""
Add the topic's new flights to the counts in a database, exactly once, and stop.

Counts and offsets are written in one transaction. After a crash Spark runs a batch again, and the store's
offsets show whether the batch's transaction was committed.
"""

from __future__ import annotations

import json
import os

from flights_job import parse
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlalchemy import Engine, create_engine, text

from airflow_kafka_offsets.spark import SqlOffsetStore, batch_ranges, spark_kafka_options

CREATE = text(
    "CREATE TABLE IF NOT EXISTS departures (day TEXT, origin TEXT, flights BIGINT, late BIGINT, PRIMARY KEY "
    "(day, origin))"
)
ADD = text(
    "INSERT INTO departures VALUES (:day, :origin, :flights, :late) ON CONFLICT (day, origin) DO UPDATE SET "
    "flights = departures.flights + excluded.flights, late = departures.late + excluded.late"
)


# --8<-- [start:add]
def add(engine: Engine, pipeline: dict[str, str], batch: DataFrame, batch_id: int) -> None:
    """Add the batch's flights to the counts, unless they are already counted."""
    counts = batch.groupBy("day", "origin").agg(
        f.count("*").alias("flights"), f.count_if(f.col("dep_delay") > 15).alias("late")
    )
    rows = [row.asDict() for row in counts.collect()]
    ranges = batch_ranges(pipeline["checkpoint_location"], batch_id)
    with engine.begin() as connection:
        if not SqlOffsetStore(engine).save(connection, pipeline["group_id"], ranges):
            print(f"batch {batch_id} was counted before")
        elif rows:
            connection.execute(ADD, rows)


# --8<-- [end:add]


def main() -> None:
    engine = create_engine(os.environ["DATABASE_URL"])
    SqlOffsetStore(engine).create_table()
    with engine.begin() as connection:
        connection.execute(CREATE)

    spark = SparkSession.builder.appName("counted flights").getOrCreate()
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
        .foreachBatch(lambda batch, batch_id: add(engine, pipeline, batch, batch_id))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
