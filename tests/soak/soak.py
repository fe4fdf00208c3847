"""Plays schedules against the package, several at once, and counts what happened."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from tests.soak.brokers import OFFSETS, Cluster
from tests.soak.history import History
from tests.soak.model import PARTITIONS
from tests.soak.played import Played
from tests.soak.schedule import draw
from tests.soak.spark_query import Spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.soak.model import Offsets
    from tests.soak.schedule import Schedule


@dataclass
class Report:
    """What a soak has done."""

    schedules: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    longest: float = 0.0
    seconds: float = 0.0
    spark: str = ""
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lines(self) -> Iterator[str]:
        """Return the report as text."""
        yield f"schedules: {self.schedules}, failed: {len(self.failed)}, seconds: {self.seconds:.0f}"
        yield f"faults injected: {self.faults.total()} ({_counted(self.faults)})"
        yield f"actions: {self.actions.total()} ({_counted(self.actions)}), longest: {self.longest:.1f} s"
        yield f"commits of partitions in Kafka's log: {self.commits}"
        if self.spark:
            yield self.spark
        yield f"errors that actions ended with: {self.errors.total()} ({_counted(self.errors)})"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@dataclass
class Lane:
    """A topic, and a way to the brokers, that one schedule at a time has for itself."""

    number: int
    topic: str
    ends: Offsets


class Soak:
    """
    A cluster, and the lanes on which schedules are played.

    :param lanes: schedules at once.
    :param verbose: whether to print also the schedules that break no promise.
    """

    def __init__(
        self, *, lanes: int, secured: bool = False, with_spark: bool = False, verbose: bool = False
    ) -> None:
        self._verbose = verbose
        self._kind = {"secured": secured, "spark": with_spark}
        self.report = Report()
        self.directory = Path(tempfile.mkdtemp(prefix="soak-"))
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["tests.soak.worker"])
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.cluster = Cluster(lanes=lanes, secured=secured)
            undo.callback(self.cluster.close)
            self.lanes = [Lane(number, f"soak-{number}", [0] * PARTITIONS) for number in range(lanes)]
            for lane in self.lanes:
                self.cluster.make_topic(lane.topic, PARTITIONS)
            config = {"bootstrap.servers": self.cluster.servers, "log_level": 0, "linger.ms": 1}
            self._producer = Producer(config | {"enable.idempotence": True})
            self.spark = Spark(self.cluster.servers, self.directory)
            undo.callback(self.spark.close)
            self.history = History(self.cluster.consumer("history"), OFFSETS)
            undo.callback(self.history.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """End everything."""
        self._undo.close()

    def produce(self, lane: Lane, counts: Offsets) -> None:
        """Write records, and wait until they are there."""
        refused: list[Any] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for partition, count in enumerate(counts):
            for _ in range(count):
                self._producer.produce(lane.topic, b"x", partition=partition, on_delivery=note)
        if self._producer.flush(60) or refused:
            raise TimeoutError(f"records were not written: {refused[:1]}")
        lane.ends = [end + count for end, count in zip(lane.ends, counts, strict=True)]

    def play(self, seed: int, numbers: Iterator[int], until: float) -> None:
        """Play schedules on all lanes until the numbers, or the time, are used up."""
        lock = threading.Lock()
        began = time.monotonic()

        def next_number() -> int | None:
            with lock:
                return next(numbers, None) if time.monotonic() < until else None

        def work(lane: Lane) -> None:
            while (number := next_number()) is not None:
                self._play_one(draw(seed, number, **self._kind), lane)

        with ThreadPoolExecutor(len(self.lanes)) as pool:
            for done in [pool.submit(work, lane) for lane in self.lanes]:
                done.result()
        self.report.seconds = time.monotonic() - began
        self.report.spark = self.spark.figures()
        if self.cluster.broken is not None:
            raise self.cluster.broken

    def _play_one(self, schedule: Schedule, lane: Lane) -> None:
        played = Played(self, schedule, lane)
        try:
            played.play()
        except Exception as error:  # noqa: BLE001  # whatever it is, the schedule that led there is printed
            lines = [f"FAILED: {type(error).__name__}: {error}", str(schedule), *played.log]
            options = "".join(f" --{option}" for option, given in self._kind.items() if given)
            replay = (
                f"replay: python tests/soak/run.py --seed {schedule.seed} --only {schedule.number}{options}"
            )
            text = "\n".join([*lines, replay])
            with self.report.lock:
                self.report.failed.append(text)
            print(text, flush=True)
        else:
            shutil.rmtree(played.home, ignore_errors=True)
            if self._verbose:
                print("\n".join([str(schedule), *played.log]), flush=True)
        with self.report.lock:
            self.report.schedules += 1
