"""
A Spark in a process of its own, which can be killed as a driver is.

It runs a streaming query for each line on its standard input, and answers with a line. This module is its
program, too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

STARTS = 400.0
ANSWERS = 200.0
QUERY_ENDS = 120.0


class DriverKilledError(Exception):
    """The driver has ended in the middle of an order."""


class SparkProcess:
    """
    The process, from outside; it is :meth:`ready` some time after it was started.

    :param settings: Spark's.
    :param log: takes what it prints, and its working directory is that of this file.
    """

    def __init__(self, settings: dict[str, str], log: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=log.parent,
                env={**environment, "PYSPARK_PYTHON": sys.executable},
            )
        self._send(settings)

    def ready(self) -> None:
        """Wait until it is there."""
        self._answer(STARTS)

    def run(self, topic: str, location: str, options: dict[str, str], *, dies: bool = False) -> Any:
        """
        Run a query from the start of a topic to its end.

        :param options: of the Kafka source.
        :param dies: kill the driver in the first batch.
        :return: ``read``: batch -> partition -> first offset, last offset, number of records; ``progress``:
            Spark's own numbers of each batch with records; ``error`` if the query has failed.
        :raises DriverKilledError: if it was killed.
        """
        self._send({"topic": topic, "location": location, "options": options, "dies": dies})
        return self._answer(ANSWERS)

    def end(self) -> None:
        """Let it end, and kill it if it does not."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=60)
        self._kill()

    def _send(self, line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self._kill()
            raise TimeoutError(f"Spark did not answer within {seconds:g} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise DriverKilledError
        return json.loads(line)

    def _kill(self) -> None:
        """End the driver and its JVM."""
        if self._process.poll() is None:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Answer until the input ends; only answers go to the standard output."""
    from pyspark.sql import SparkSession

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.master("local[2]").appName("a process of its own")
    for name, value in json.loads(sys.stdin.readline()).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        answer: dict[str, Any] = {"read": {}}
        try:
            answer["progress"] = _run(session, answer["read"], **json.loads(line))
        except Exception as error:  # noqa: BLE001  # who has asked decides what follows
            answer["error"] = f"{type(error).__name__}: {str(error)[:3000]}"
        print(json.dumps(answer), file=answers, flush=True)


def _run(
    session: SparkSession,
    read: dict[int, Any],
    *,
    topic: str,
    location: str,
    options: dict[str, str],
    dies: bool,
) -> list[dict[str, Any]]:
    def batch_does(frame: DataFrame, batch: int) -> None:
        found: dict[int, list[int]] = {}
        for row in frame.selectExpr("partition", "offset").collect():
            first, last, count = found.get(row.partition, [row.offset, row.offset, 0])
            found[row.partition] = [min(first, row.offset), max(last, row.offset), count + 1]
        if dies:
            os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        read[batch] = found

    stream = session.readStream.format("kafka").option("subscribe", topic)
    records = stream.option("startingOffsets", "earliest").options(**options).load()
    writer = records.writeStream.option("checkpointLocation", location).foreachBatch(batch_does)
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_ENDS):
            raise TimeoutError(f"the query did not end within {QUERY_ENDS:g} s")
        return [
            {
                "batch": progress.batchId,
                "start": _offsets(progress.sources[0].startOffset, topic),
                "end": _offsets(progress.sources[0].endOffset, topic),
            }
            for progress in query.recentProgress
            if progress.numInputRows
        ]
    finally:
        query.stop()


def _offsets(text: str | None, topic: str) -> dict[str, int] | None:
    # A query that begins has no start; PySpark writes that as Python does.
    return None if text in (None, "None", "null") else json.loads(text)[topic]


if __name__ == "__main__":
    main()
