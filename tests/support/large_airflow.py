"""A real Airflow on PostgreSQL with two schedulers and two triggerers, and with Celery also two workers."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deadlines import until
from own_postgres import OwnPostgres
from running_airflow import (
    API_SERVER,
    DAG_PROCESSOR,
    READY,
    SCHEDULER,
    SECOND,
    TRIGGERER,
    WORKER,
    RunningAirflow,
)
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.process import SupervisedProcess

LOCAL, CELERY = EXECUTORS = ("LocalExecutor", "CeleryExecutor")
JOBS = {SCHEDULER: "SchedulerJob", TRIGGERER: "TriggererJob"}
PROVIDER = "airflow.providers.celery"
REDIS = "redis-server"

SETTINGS = {
    "AIRFLOW__API__WORKERS": "1",
    # A dead scheduler or task is noticed within seconds.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
}


def missing_for(executor: str) -> str | None:
    """Return what this machine lacks for an executor, and how to install it."""
    if executor == LOCAL:
        return None
    if find_spec(PROVIDER) is None:
        packages = "'apache-airflow-providers-celery>=3.10' 'celery>=5.5,<5.7'"
        return f"{PROVIDER} is not installed: pip install -c constraints.txt {packages}"
    if shutil.which(REDIS) is None:
        return f"{REDIS} is not installed: apt-get install redis-server"
    return None


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    """Start a Redis on loopback that keeps nothing, and return its URL."""
    port = free_port()
    directory.mkdir()
    command = [REDIS, "--bind", LOOPBACK, "--port", str(port), "--save", "", "--dir", str(directory)]
    server = SupervisedProcess(command, directory / "redis.log", directory)

    def listens() -> bool:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return True
        return False

    try:
        until(listens, "Redis")
        yield f"redis://{LOOPBACK}:{port}/0"
    finally:
        server.end_all()


class LargeAirflow(RunningAirflow):
    """
    An Airflow of several schedulers, triggerers and workers.

    :param broker: URL of Celery's broker; without one tasks run with LocalExecutor.
    """

    def __init__(
        self,
        home: Path,
        bootstrap_servers: str,
        dag_files: Iterable[Path],
        postgres: OwnPostgres,
        *,
        broker: str | None,
        **variables: str,
    ) -> None:
        components = [API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER]
        settings = dict(SETTINGS)
        if broker is not None:
            components += [WORKER, WORKER + SECOND]
            settings |= {
                "AIRFLOW__CORE__EXECUTOR": CELERY,
                "AIRFLOW__CELERY__BROKER_URL": broker,
                "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            }
        super().__init__(
            home, bootstrap_servers, dag_files, postgres, components=components, **{**settings, **variables}
        )
        database = postgres.database_url(self.database)
        if broker is not None:
            self.environment["AIRFLOW__CELERY__RESULT_BACKEND"] = f"db+{database}"
        self.topics: dict[str, str] = {}
        """Those that its DAGs are about, by what they are for."""
        self._engine = create_engine(database, poolclass=NullPool)
        self._jobs: dict[str, int] = {}
        """The number of each scheduler and triggerer in Airflow's database."""

    def __enter__(self) -> LargeAirflow:
        super().__enter__()
        for kind in JOBS:
            (self._jobs[kind],) = self.alive(kind)
            self.add(kind + SECOND)
        return self

    def __exit__(self, *_: object) -> None:
        self.components = tuple({**dict.fromkeys(self.components), **dict.fromkeys(self._running)})
        super().__exit__()

    def add(self, component: str) -> None:
        """Start one more scheduler or triggerer, and return when it is there."""
        kind = component.removesuffix(SECOND)
        before = set(self.alive(kind))
        self.start(component)
        self._wait(lambda: self.alive(kind) - before, f"a second {kind}", READY)
        (self._jobs[component],) = self.alive(kind) - before

    def alive(self, kind: str) -> set[int]:
        """Return the numbers of the schedulers or triggerers that are there."""
        parameters = {"job_type": JOBS[kind], "is_alive": True}
        return {job["id"] for job in self.api("GET", "jobs", params=parameters)["jobs"]}

    def triggerer_of(self, dag_id: str, run_id: str) -> set[str | None]:
        """Return the triggerers that hold the deferred tasks of a run."""
        names = {number: component for component, number in self._jobs.items()}
        tasks = self.api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        jobs = [task["triggerer_job"] for task in tasks if task["state"] == "deferred"]
        return {None if job is None else names.get(job["id"]) for job in jobs}

    def watchers(self) -> set[str | None]:
        """Return the triggerers that hold the triggers of watched assets."""
        names = {number: component for component, number in self._jobs.items()}
        wanted = text("SELECT DISTINCT triggerer_id FROM trigger WHERE classpath LIKE '%LagEventTrigger'")
        with self._engine.connect() as connection:
            return {names.get(number) for number in connection.scalars(wanted)}

    def figures(self) -> str:
        """Return how many DAG runs there were, and how many tasks that ended."""
        texts = []
        for what, path in (("DAG runs", "dags/~/dagRuns"), ("tasks", "dags/~/dagRuns/~/taskInstances")):
            done, failed = (
                self.api("GET", path, params={"state": state, "limit": 1})["total_entries"]
                for state in ("success", "failed")
            )
            texts.append(f"{done + failed} {what}, of which {failed} failed")
        return "; ".join(texts)

    def tab(self, path: str) -> Any:
        """Ask the Offsets tab; JSON is parsed."""
        self.api("GET", "version")  # logs in
        assert self._client is not None
        answer = self._client.get(f"{self.url}/kafka-offsets{path}")
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json() if "json" in answer.headers["content-type"] else answer.text
