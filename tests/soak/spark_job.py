"""
A Spark that runs a streaming query for each line on its standard input, and answers with a line.

It is a process of its own, so that it can be killed as a driver is. A line is JSON: ``topic``, ``location``,
and ``dies``, whether the driver is killed in the middle of a batch. The answer has the offsets that each
batch has read, ``{"batches": {batch: {partition: [first, last, count]}}}``, and an error if there was one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT = 60


def main(servers: str, settings: dict[str, str]) -> None:
    """Answer until the input ends."""
    from pyspark.sql import SparkSession

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.master("local[1]").appName("soak")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        answer: dict[str, Any] = {"batches": {}}
        try:
            _run(session, servers, answer["batches"], **json.loads(line))
        except Exception as error:  # noqa: BLE001  # whatever it is, the query is started again
            answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
        print(json.dumps(answer), file=answers, flush=True)


def _run(
    session: SparkSession, servers: str, batches: dict[int, Any], *, topic: str, location: str, dies: bool
) -> None:
    def read(frame: DataFrame, batch: int) -> None:
        rows = frame.selectExpr("partition", "offset").collect()
        found: dict[int, list[int]] = {}
        for row in rows:
            first, last, count = found.get(row.partition, [row.offset, row.offset, 0])
            found[row.partition] = [min(first, row.offset), max(last, row.offset), count + 1]
        if dies:
            os.kill(_java(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        batches[batch] = found

    stream = session.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    writer = stream.load().writeStream.option("checkpointLocation", location).foreachBatch(read)
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(TIMEOUT):
        query.stop()
        raise TimeoutError(f"the query did not end within {TIMEOUT} s")


def _java() -> int:
    from pyspark import SparkContext

    pid: int = SparkContext._gateway.proc.pid
    return pid


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
