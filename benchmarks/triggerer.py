"""
Measures what 500 deferred sensors cost a real triggerer.

It creates an Airflow database with 500 deferred tasks, and runs Airflow's triggerer on it: once without
triggers, once with 500 tasks that only wait for a time, then with sensors for 50 groups, and for 500 groups.
The cost is processor time as a fraction of one core, and memory, of all processes of the triggerer, compared
with the triggerer without triggers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import NamedTuple

import psutil
from cluster import Cluster, say
from measuring import Section, Target, Times

from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow
from airflow_kafka_offsets.local.process import SupervisedProcess
from airflow_kafka_offsets.model.offsets import TopicPartition

POLL = 10.0
DAG_ID = "deferred"
DAG = f"""
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("{DAG_ID}", schedule=None):
    for number in range(SENSORS):
        EmptyOperator(task_id=f"wait_{{number}}")
"""

DEFER = """
import json, sys
from datetime import datetime, timedelta, timezone

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from airflow.providers.standard.triggers.temporal import DateTimeTrigger

from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger

dag_id, groups, topic, poll = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], float(sys.argv[4])
now = datetime.now(tz=timezone.utc)
with create_session() as session:
    dag = SerializedDagModel.get(dag_id, session=session).dag
    run = dag.create_dagrun(
        run_id="benchmark", run_after=now, run_type=DagRunType.MANUAL, state=DagRunState.RUNNING,
        triggered_by=DagRunTriggeredByType.CLI, session=session,
    )
    for number, instance in enumerate(run.get_task_instances(session=session)):
        if groups:
            waiting = ConsumerGroupLagTrigger(
                group_id=groups[number % len(groups)], topics=topic, max_lag=0, poll_interval=poll
            )
        else:
            waiting = DateTimeTrigger(now + timedelta(days=1))
        trigger = Trigger.from_object(waiting)
        session.add(trigger)
        session.flush()
        instance.trigger_id = trigger.id
        instance.state = TaskInstanceState.DEFERRED
        instance.next_method = "execute_complete"
"""


class Cost(NamedTuple):
    """Total cost of a triggerer's processes."""

    cores: float
    megabytes: float
    threads: int


@contextlib.contextmanager
def triggerer(
    on: Cluster, directory: Path, sensors: int, groups: list[str], topic: str
) -> Iterator[SupervisedProcess]:
    """Run a triggerer on a database with a number of deferred sensors."""
    dags = directory / "dags"
    dags.mkdir(parents=True)
    environment = demo_environment(directory, dags, on.servers)
    migrate_airflow(environment, directory)
    if sensors:
        (dags / "deferred.py").write_text(DAG.replace("SENSORS", str(sensors)))
        _run([sys.executable, "-m", "airflow", "dags", "reserialize"], environment)
        _run([sys.executable, "-c", DEFER, DAG_ID, json.dumps(groups), topic, str(POLL)], environment)
    log = directory / "triggerer.log"
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        process = SupervisedProcess(
            [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"], log, directory
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        running = f"{sensors} triggers currently running"
        _until(lambda: log.exists() and running in log.read_text(errors="replace"), log, process)
        yield process
    finally:
        process.end()


def cost_of(process: SupervisedProcess, settle: float, seconds: float) -> Cost:
    """Measure for ``seconds``, after the process has settled."""
    time.sleep(settle)
    began, before = time.monotonic(), _processor_time(process)
    time.sleep(seconds)
    cores = (_processor_time(process) - before) / (time.monotonic() - began)
    family = _family(process)
    memory = sum(each.memory_full_info().pss for each in family) / 1e6
    return Cost(cores, memory, sum(each.num_threads() for each in family))


def interval_of(groups: list[str], topic: str, sensors: int, servers: str) -> float:
    """Return the average seconds between two polls of one wait, with a number of sensors."""
    os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = json.dumps(
        {"conn_type": "kafka", "extra": {"bootstrap.servers": servers}}
    )
    from airflow_kafka_offsets.triggers.poll import poll_repeatedly
    from airflow_kafka_offsets.waits.lag import LagWait

    waits = [
        LagWait(group_id=groups[number % len(groups)], topics=topic, max_lag=0) for number in range(sensors)
    ]

    async def run() -> list[float]:
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(aclosing(poll_repeatedly(wait, POLL))) for wait in waits
            ]

            async def times(stream: AsyncIterator[object]) -> float:
                await anext(stream)
                began = time.monotonic()
                for _ in range(2):
                    await anext(stream)
                return (time.monotonic() - began) / 2

            return await asyncio.wait_for(asyncio.gather(*map(times, streams)), 900)

    each = asyncio.run(run())
    return sum(each) / len(each)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])


def _until(
    condition: Callable[[], object], log: Path, process: SupervisedProcess, seconds: float = 300.0
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.status is not None or time.monotonic() > end:
            raise SystemExit(log.read_text(errors="replace")[-4000:])
        time.sleep(0.5)


def _family(process: SupervisedProcess) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def _processor_time(process: SupervisedProcess) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in _family(process))


def measure(
    on: Cluster,
    sensors: int = 500,
    sizes: Sequence[int] = (50, 500),
    settle: float = 30.0,
    seconds: float = 40.0,
) -> Section:
    """Measure a triggerer without triggers, with tasks that wait for a time, and with sensors for groups."""
    topic = on.topic(50)
    names = [on.name(f"group-{number}") for number in range(max(sizes))]
    with on.client() as client:
        for name in names:
            client.commit(name, {TopicPartition(topic, number): 0 for number in range(50)})
    rows: list[tuple[str, Cost, float]] = []
    with tempfile.TemporaryDirectory(prefix="triggerer-") as directory:
        home = Path(directory)

        def one(name: str, tasks: int, groups: list[str]) -> Cost:
            say(f"a triggerer with {name}")
            with triggerer(on, home / str(len(rows)), tasks, groups, topic) as process:
                return cost_of(process, settle, seconds)

        idle = one("nothing", 0, [])
        rows.append(("nothing", idle, 0.0))
        asking_nobody = one("tasks that wait for a time", sensors, [])
        rows.append((f"{sensors} tasks that wait for a time", asking_nobody, 0.0))
        targets = []
        for size in sizes:
            name = f"{sensors} sensors over {size} groups"
            cost = one(name, sensors, names[:size])
            interval = interval_of(names[:size], topic, sensors, on.servers)
            rows.append((name, cost, interval))
            megabytes = cost.megabytes - asking_nobody.megabytes
            targets += [
                Target(f"{name}: seconds between polls", interval, POLL * 1.1, False, "s"),
                Target(f"{name}: of one core over idle", 100 * (cost.cores - idle.cores), 10, False, "%"),
                Target(f"{name}: memory over tasks that wait for a time", megabytes, 60, False, "MB"),
                Target(f"{name}: threads", cost.threads, 20, False, "threads"),
            ]
    table = [
        "| a triggerer with | of one core | over idle | MB | over idle | threads | seconds between polls |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    table += [
        f"| {name} | {cost.cores:.1%} | {cost.cores - idle.cores:.1%} | {cost.megabytes:.0f} | "
        f"{cost.megabytes - idle.megabytes:.0f} | {cost.threads} | {f'{interval:.1f}' if interval else '-'} |"
        for name, cost, interval in rows
    ]
    note = f"Deferred sensors that look every {POLL:g} s, each at a group with 50 partitions."
    return Section("500 deferred sensors", Times({}), targets, [note], table)
