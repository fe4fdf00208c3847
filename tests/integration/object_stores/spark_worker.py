"""
A Spark that runs what it is asked for on standard input, line by line, and ends with it.

``{"topic": ..., "location": ..., "options": {...}}`` runs a query over the topic to its end. The answer is a
list of its batches: number, start and end of each partition, records. ``"die_in": 3`` ends the process while
batch 3 runs, as a crash would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

ANSWER = "answer: "
DEADLINE = 120


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    builder = SparkSession.builder.master("local[2]").appName("object stores")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    answer({"hadoop": spark.sparkContext._gateway.jvm.org.apache.hadoop.util.VersionInfo.getVersion()})
    for line in sys.stdin:
        answer(outcome(spark, line))
    spark.stop()


def outcome(spark: SparkSession, line: str) -> object:
    try:
        return run(spark, **json.loads(line))
    except Exception as error:  # noqa: BLE001  # the test says what it expects
        return {"error": str(error)[:3000]}


def answer(value: object) -> None:
    print(f"\n{ANSWER}{json.dumps(value)}", flush=True)


def run(
    spark: SparkSession,
    topic: str,
    location: str,
    options: dict[str, str],
    die_in: int | None = None,
) -> list[dict[str, Any]]:
    def batch_does(frame: DataFrame, batch_id: int) -> None:
        frame.count()
        if batch_id == die_in:
            os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.readStream.format("kafka").option("subscribe", topic).options(**options).load()
    writer = frame.writeStream.option("checkpointLocation", location)
    writer = writer.foreachBatch(batch_does) if die_in is not None else writer.format("noop")
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(DEADLINE):
            raise TimeoutError(f"the query did not end within {DEADLINE} s")
        return [
            {
                "batch": progress.batchId,
                "start": offsets(progress.sources[0].startOffset, topic),
                "end": offsets(progress.sources[0].endOffset, topic),
                "records": progress.numInputRows,
            }
            for progress in query.recentProgress
            if progress.numInputRows
        ]
    finally:
        query.stop()


def offsets(text: str | None, topic: str) -> dict[str, int] | None:
    # A query that begins has no start; PySpark writes that as Python does.
    return None if text in (None, "None", "null") else json.loads(text)[topic]


if __name__ == "__main__":
    main()
