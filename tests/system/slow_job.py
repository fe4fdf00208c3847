"""A Spark job that copies what is new in a topic to files, slowly, in batches of a hundred records."""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf
from pyspark.sql.types import StringType

servers, topic, group, checkpoint, output = sys.argv[1:]


@udf(StringType())
def slowly(value: str) -> str:
    """Take a while for each record."""
    time.sleep(0.1)
    return value


spark = SparkSession.builder.getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 100)
    .option("consumer.commit.groupid", group)
    .load()
)
query = (
    records.select(slowly(col("value").cast("string")).alias("value"))
    .writeStream.format("text")
    .option("path", output)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
