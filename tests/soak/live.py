"""A live Airflow whose scheduler and triggerer are killed while its DAGs move offsets and wait."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from own_postgres import own_postgres
from running_airflow import SCHEDULER, TRIGGERER, RunningAirflow

from tests.soak.brokers import OFFSETS, Cluster
from tests.soak.history import History
from tests.soak.model import (
    PARTITIONS,
    READ,
    BrokenPromiseError,
    Checkpoint,
    State,
    check_history,
    read_group,
)
from tests.soak.schedule import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Consumer

    from tests.soak.model import Offsets

PIPELINES = 3
BURST = 6
ENDS = 300.0
"""Seconds within which everything ends after the last kill."""

_KILLED = (TRIGGERER, TRIGGERER, SCHEDULER, "broker")
_BROKER_FAULTS = ("kill-coordinator", "kill-leader", "roll-broker", "freeze-coordinator")
_VARIABLES = {
    # Tasks whose scheduler was killed are found soon.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__CORE__PARALLELISM": "6",
}


class Pipeline:
    """A pipeline that a DAG moves, run by run."""

    def __init__(self, soak: LiveSoak, number: int) -> None:
        self.name = f"moved-{number}"
        self._soak = soak
        self._ends: Offsets = [0] * PARTITIONS
        self._other: Offsets = [0] * PARTITIONS
        self._checkpoint = Checkpoint(soak.lake / self.name, self.name)
        self._reader = soak.cluster.consumer(self.name)
        self._others = soak.cluster.consumer(f"other-{number}")
        self._run = ""
        self._commits_at = self._committed_at = 0.0
        self.runs = 0

    def close(self) -> None:
        """End the clients."""
        self._reader.close()
        self._others.close()

    def step(self, *, begin: bool) -> None:
        """Go on with the run that is under way, or begin one."""
        if not self._run:
            if begin:
                self._begin()
            return
        if self._commits_at and time.time() >= self._commits_at:
            self._commit_other()
        run = self._soak.run_of(self.name, self._run)
        if run["state"] in ("success", "failed"):
            self._judge(run)

    @property
    def rests(self) -> bool:
        """Whether no run is under way."""
        return not self._run

    def _begin(self) -> None:
        self._soak.produce(self.name, [2, 3, 4])
        self._ends = [end + more for end, more in zip(self._ends, [2, 3, 4], strict=True)]
        self._checkpoint.run_batch(self._ends)
        to = [self._soak.dice.randint(0, end) for end in self._ends]
        self._other = [offset + 1 for offset in self._other]
        conf = {"to": to, "target": self._other, "ends": self._ends}
        offsets = {name: {self.name: dict(enumerate(each))} for name, each in conf.items()}
        self._run = self._soak.airflow.trigger(self.name, **offsets)
        self._commits_at = time.time() + self._soak.dice.uniform(2, 25)

    def _commit_other(self) -> None:
        """Commit what the run waits for."""
        self._committed_at, self._commits_at = time.time(), 0.0
        _commit(self._others, self.name, self._other)

    def _judge(self, run: dict[str, Any]) -> None:
        tasks = self._soak.tasks_of(self.name, self._run)
        states = {task["task_id"]: task["state"] for task in tasks}
        if run["state"] != "success" or set(states.values()) != {"success"}:
            raise BrokenPromiseError(f"run {self._run} of {self.name} has ended as {run['state']}: {states}")
        (waited,) = (task for task in tasks if task["task_id"] == "waited")
        if (
            not self._committed_at
            or datetime.fromisoformat(waited["end_date"]).timestamp() < self._committed_at
        ):
            raise BrokenPromiseError(f"{self.name}: a wait has ended before what it waits for: {waited}")
        now = State(self._checkpoint.read(), read_group(self._reader, self.name))
        if now != State(self._ends, list(self._ends)):
            raise BrokenPromiseError(f"after a green run {self.name} is at {now}, expected {self._ends}")
        if unfinished := self._checkpoint.unfinished_move():
            raise BrokenPromiseError(f"after a green run of {self.name} move {unfinished} is unfinished")
        check_history(self._soak.history.of(self.name, now.group))
        self._soak.retries.update({each["task_id"]: each["try_number"] - 1 for each in tasks})
        self.runs += 1
        self._run, self._committed_at = "", 0.0


def _commit(client: Consumer, topic: str, offsets: Offsets) -> None:
    """Commit as soon as a coordinator answers."""
    deadline = time.monotonic() + READ
    while True:
        try:
            commits = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
            client.commit(offsets=commits, asynchronous=False)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return


class LiveSoak:
    """
    The whole: brokers, Airflow and pipelines.

    :param seed: draws what is killed, and when.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"{seed}:airflow")
        self.kills: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.home = Path(tempfile.mkdtemp(prefix="soak-airflow-"))
        self.lake = self.home / "lake"
        self._bursts = 0
        self._away: dict[str, float] = {}
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self.home, ignore_errors=True)
            self.cluster = Cluster(lanes=1)
            undo.callback(self.cluster.close)
            for topic in ("backlog", *(f"moved-{number}" for number in range(PIPELINES))):
                self.cluster.make_topic(topic, PARTITIONS)
            self._producer = Producer(
                {"bootstrap.servers": self.cluster.servers, "log_level": 0, "enable.idempotence": True}
            )
            self.history = History(self.cluster.consumer("history"), OFFSETS)
            undo.callback(self.history.close)
            self._backlog = self.cluster.consumer("backlog")
            undo.callback(self._backlog.close)
            _commit(self._backlog, "backlog", [0] * PARTITIONS)
            self.pipelines = [Pipeline(self, number) for number in range(PIPELINES)]
            for pipeline in self.pipelines:
                undo.callback(pipeline.close)
            postgres = undo.enter_context(own_postgres())
            self.airflow = RunningAirflow(
                self.home,
                self.cluster.servers,
                [Path(__file__).with_name("live_dags") / "soaked.py"],
                postgres,
                SOAK_PIPELINES=str(PIPELINES),
                SOAK_LAKE=str(self.lake),
                SOAK_BURST=str(BURST),
                **_VARIABLES,
            )
            undo.enter_context(self.airflow)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """End everything."""
        self._undo.close()

    def play(self, minutes: float) -> None:
        """Let everything go on for some minutes with kills, then without, and check the end."""
        until = time.monotonic() + minutes * 60
        kill_at = time.monotonic() + 10
        burst_at = time.monotonic()
        while (now := time.monotonic()) < until:
            self._step(begin=True)
            if now >= burst_at:
                self._burst()
                burst_at = now + self.dice.uniform(5, 20)
            if now >= kill_at:
                self._kill(self.dice.choice(_KILLED))
                kill_at = time.monotonic() + self.dice.uniform(8, 25)
            time.sleep(0.5)
        ends = time.monotonic() + ENDS
        while not (all(pipeline.rests for pipeline in self.pipelines) and self._drained()):
            if time.monotonic() > ends:
                left = [pipeline.name for pipeline in self.pipelines if not pipeline.rests]
                at = read_group(self._backlog, "backlog")
                raise BrokenPromiseError(
                    f"{ENDS:g} s after the last kill: runs under way of {left}; backlog at {at}, expected "
                    f"{self._bursts * BURST} records"
                )
            self._step(begin=False)
            time.sleep(0.5)
        failed = [run for run in self.airflow.runs("backlog") if run["state"] == "failed"]
        if failed:
            raise BrokenPromiseError(f"runs that a backlog has started have failed: {failed}")
        check_history(self.history.of("backlog", read_group(self._backlog, "backlog")))
        if self.cluster.broken is not None:
            raise self.cluster.broken

    def lines(self) -> Iterator[str]:
        """Return the figures as text."""
        runs = sum(pipeline.runs for pipeline in self.pipelines)
        woken = len(self.airflow.runs("backlog"))
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        yield f"kills: {self.kills.total()} ({kills})"
        yield f"runs with a commit, a reset, a restore and two waits: {runs}, all green and right"
        yield f"bursts of records: {self._bursts}, in {woken} runs that a backlog has started"
        yield f"tries after a first one: {self.retries.total()}"

    def produce(self, topic: str, counts: Offsets) -> None:
        """Write records, and wait until they are there."""
        for partition, count in enumerate(counts):
            for _ in range(count):
                self._producer.produce(topic, b"x", partition=partition)
        if self._producer.flush(60):
            raise TimeoutError(f"records of {topic} were not written")

    def run_of(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run of a DAG."""
        found: dict[str, Any] = self.airflow.api("GET", f"dags/{dag_id}/dagRuns/{run_id}")
        return found

    def tasks_of(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        found = self.airflow.api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return list(found["task_instances"])

    def _step(self, *, begin: bool) -> None:
        for component, since in list(self._away.items()):
            if time.monotonic() >= since:
                self.airflow.start(component)
                del self._away[component]
        for pipeline in self.pipelines:
            pipeline.step(begin=begin)

    def _burst(self) -> None:
        self._bursts += 1
        self.produce("backlog", [BURST // PARTITIONS] * PARTITIONS)

    def _kill(self, what: str) -> None:
        stamp = datetime.now(tz=timezone.utc).strftime("%H:%M:%S")
        if what == "broker":
            fault = Fault(self.dice.choice(_BROKER_FAULTS), 0, amount=self.dice.uniform(0, 3))
            self.cluster.strike(fault, "backlog", "backlog")
            what = fault.kind
        elif what in self._away:
            return
        else:
            self.airflow.kill(what)
            self._away[what] = time.monotonic() + self.dice.uniform(0, 6)
        self.kills[what] += 1
        print(f"{stamp} killed: {what}", flush=True)

    def _drained(self) -> bool:
        end = self._bursts * BURST // PARTITIONS
        return read_group(self._backlog, "backlog") == [end] * PARTITIONS
