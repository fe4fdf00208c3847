"""Queries of a real Spark for the soak, whose driver is killed now and then, and what they have read."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_process import DriverKilledError, SparkProcess
from spark_session import prepare_spark

from tests.soak.model import PARTITIONS, BrokenPromiseError, Checkpoint, Offsets

Read = dict[str, list[int]]
"""What a batch has read: partition -> first offset, last offset, number of records."""

_TRIES = 5
"""How often a query is started again, after an error such as a leader that is away."""


class Spark:
    """
    One Spark for all schedules, which run their queries one after the other; a driver that died is replaced.

    :param home: for its files.
    """

    def __init__(self, servers: str, home: Path) -> None:
        self._options = {"kafka.bootstrap.servers": servers}
        self._home = home
        self._driver: SparkProcess | None = None
        self._turn = threading.Lock()
        self.queries = self.batches = self.records = self.killed = 0

    def figures(self) -> str:
        """Return what was run, as text; empty if nothing was."""
        if not self.queries:
            return ""
        return (
            f"Spark: {self.queries} runs of queries, {self.batches} batches, {self.records} records read, "
            f"{self.killed} drivers killed"
        )

    def close(self) -> None:
        """End the driver."""
        if self._driver is not None:
            self._driver.end()

    def run(self, topic: str, location: Path, *, dies: bool = False) -> list[Read]:
        """
        Run a query to the end of the topic; return what each batch has read.

        :param dies: kill the driver in the first batch.
        :raises DriverKilledError: if it was.
        """
        with self._turn:
            batches: dict[str, Read] = {}
            for _ in range(_TRIES):
                self.queries += 1
                answer = self._ask(topic, location, dies)
                # A batch that has failed is run again.
                batches |= answer["read"]
                if "error" not in answer:
                    self.batches += len(batches)
                    self.records += sum(count for read in batches.values() for _, _, count in read.values())
                    return [batches[batch] for batch in sorted(batches, key=int)]
                time.sleep(1)
            raise BrokenPromiseError(f"the query does not run: {answer}")

    def _ask(self, topic: str, location: Path, dies: bool) -> Any:
        if self._driver is None:
            settings = prepare_spark(self._home) | {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.driver.memory": "512m",
                "spark.sql.warehouse.dir": str(self._home / "warehouse"),
            }
            self._driver = SparkProcess(settings, self._home / "spark.log")
            self._driver.ready()
        try:
            return self._driver.run(topic, str(location), self._options, dies=dies)
        except (DriverKilledError, TimeoutError) as error:
            self.killed += isinstance(error, DriverKilledError)
            self._driver = None
            raise


class SparkQuery(Checkpoint):
    """
    A checkpoint that a query of a real Spark writes, which must read each record that it should, and once.

    :param note: takes lines for the log of the schedule.
    """

    def __init__(self, directory: Path, topic: str, spark: Spark, note: Callable[[str], None]) -> None:
        self.directory = directory
        self._topic = topic
        self._spark = spark
        self._log = note

    def run_batch(self, ends: Offsets, *, finish: bool = True) -> None:
        """Run the query to the end of the topic, or until its driver is killed in the middle of a batch."""
        begun = (self.directory / "commits").exists() and self.finished()
        start = self.read() if begun else [0] * PARTITIONS
        pending = self._pending() if begun else None
        if start == ends and pending is None:
            return
        try:
            batches = self._spark.run(self._topic, self.directory, dies=not finish)
        except DriverKilledError:
            if finish:
                raise
            self._log(f"    query killed at {start}")
            for path in self.directory.rglob(".*.tmp"):
                path.unlink()
            if self._pending() is None:
                raise BrokenPromiseError("the driver was killed in a batch, and none is pending") from None
            return
        self._log(f"    query from {start}: {batches}")
        last = self.at_batch(pending) if pending is not None else start
        if pending is not None:
            self._check_read(batches[:1], start, last)
            batches = batches[1:]
        self._check_read(batches, last, ends)
        if self.read() != ends:
            raise BrokenPromiseError(f"the query has ended at {self.read()}, expected {ends}")

    def _check_read(self, batches: list[Read], start: Offsets, ends: Offsets) -> None:
        """Check that some batches have read just the records of some ranges."""
        for partition, (first, end) in enumerate(zip(start, ends, strict=True)):
            read = [found[str(partition)] for found in batches if str(partition) in found]
            count = sum(each[2] for each in read)
            bounds = (min(each[0] for each in read), max(each[1] for each in read) + 1) if read else None
            expected = (first, end) if first < end else None
            if bounds != expected or count != end - first:
                raise BrokenPromiseError(
                    f"the query has read {bounds} ({count} records) of partition {partition}, expected "
                    f"{expected}: {batches}"
                )
