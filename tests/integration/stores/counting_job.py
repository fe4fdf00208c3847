"""
Adds up the records of a topic by key, in a database and exactly once; dies at a point where it is told to.

Each line on standard input starts the job anew, as a process of its own that has its own Spark. It is forked,
so that Python's part of a start is paid for once.
"""

import json
import os
import signal
import sys

import psycopg  # noqa: F401
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from sqlalchemy import create_engine, text

import airflow_kafka_offsets.checkpoint.batch  # noqa: F401
from airflow_kafka_offsets.spark import SqlOffsetStore, batch_ranges

ADD = text(
    "UPDATE counts SET records = records + :records, total = total + :total WHERE pipeline = :pipeline AND "
    "key = :key"
)


def say(**what):
    print(json.dumps(what), flush=True)


def run(told):
    builder = SparkSession.builder.appName("counting").master("local[1]")
    for key, value in told["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    engine = create_engine(told["url"])
    store = SqlOffsetStore(engine)

    def maybe_die(point, batch):
        if told["die"] == point:
            say(dies=point, batch=batch)
            # All of it at once: this process, Spark's JVM, and whatever they have started.
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def add(batch, batch_id):
        say(begins=batch_id)
        ranges = batch_ranges(told["checkpoint"], batch_id)
        by_key = batch.groupBy(f.col("key").cast("string").alias("key")).agg(
            f.count("*").alias("records"), f.sum(f.col("value").cast("string").cast("long")).alias("total")
        )
        rows = [{**row.asDict(), "pipeline": told["pipeline"]} for row in by_key.collect()]
        with engine.begin() as connection:
            new = store.save(connection, told["pipeline"], ranges)
            say(saves=batch_id, new=new)
            if new:
                maybe_die("before the results", batch_id)
                connection.execute(ADD, rows)
                maybe_die("before the database's commit", batch_id)
        if new:
            maybe_die("before Spark's commit", batch_id)

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", told["bootstrap_servers"])
        .option("subscribe", told["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
    )
    writer = records.writeStream.foreachBatch(add).option("checkpointLocation", told["checkpoint"])
    if told["die"] is None:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


for line in sys.stdin:
    job = os.fork()
    if job == 0:
        os.setsid()
        say(pid=os.getpid())
        run(json.loads(line))
        break
    say(exit=os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
