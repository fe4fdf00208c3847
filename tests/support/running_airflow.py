"""
A real Airflow for tests: api-server, scheduler, dag-processor and triggerer, each a process of its own on
loopback, with a PostgreSQL as their database.

SQLite has one lock for all of them: on a busy machine Airflow's processes end, and tasks fail, when they have
waited too long for it.
"""

import base64
import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest
from deadlines import until
from own_postgres import OwnPostgres
from packaging.version import Version

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.cache import lock_file
from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow
from airflow_kafka_offsets.local.process import SupervisedProcess

READY = 180.0
DEADLINE = 90.0
TICK = 1.0
LINES, WIDTH = 40, 400

API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER = COMPONENTS = (
    "api-server",
    "scheduler",
    "dag-processor",
    "triggerer",
)
WORKER = "worker"
SECOND = "-2"
"""Appended to the name of a component of which there are two."""

# The log servers of these would listen on every interface.
SKIP_SERVE_LOGS = (SCHEDULER, TRIGGERER, WORKER)
HEALTH = {"scheduler": SCHEDULER, "triggerer": TRIGGERER, "dag_processor": DAG_PROCESSOR}

QUICK = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__API_AUTH__JWT_SECRET": "a-secret-of-the-tests-which-is-long-enough-for-a-signature-of-512-bits",
    # No test changes a DAG file: reading each of them again takes a second.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
}

needs_fields_in_lists = pytest.mark.skipif(
    Version(version("apache-airflow")) < Version("3.3"),
    reason="Airflow 3.1 and 3.2 leave the rendered fields out of their lists, so each instance is asked for",
)

needs_asset_state = pytest.mark.skipif(
    Version(version("apache-airflow")) < Version("3.3"),
    reason="Airflow 3.1 and 3.2 keep no state of an asset, in which a trigger notes that it has fired",
)

MIGRATED = "migrated"
"""The name of an Airflow's empty database, from which the others are copied."""


def write_config(home: Path) -> None:
    """Write the configuration, else the first of Airflow's processes do so, each with its own key."""
    key = base64.urlsafe_b64encode(bytes(32)).decode()
    (home / "airflow").mkdir(parents=True, exist_ok=True)
    (home / "airflow" / "airflow.cfg").write_text(f"[core]\nfernet_key = {key}\n", encoding="utf-8")


def make_sqlite(environment: Mapping[str, str], home: Path, run_directory: Path) -> None:
    """Create the database of an Airflow of one process, from the copy of this test run where there is one."""
    file, copy = home / "airflow" / "airflow.db", run_directory / f"{MIGRATED}.db"
    with lock_file(copy.with_suffix(".lock"), "creating Airflow's database", READY):
        if copy.exists():
            write_config(home)
        else:
            migrate_airflow(environment, home)
            shutil.copy(file, copy)
    shutil.copy(copy, file)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process does nothing any more, although its parent may not have noticed yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class RunningAirflow:
    """
    An Airflow that runs until it is stopped; use it as a context manager.

    :param home: a directory of its own, for its database, logs and DAGs.
    :param bootstrap_servers: what the connection kafka_default leads to.
    :param dag_files: they are copied to its DAG folder.
    :param postgres: where its database is created.
    :param components: those that are started.
    :param path: of its address, as behind a sub-path.
    :param variables: of the environment, for its components and so for its DAGs.
    """

    def __init__(
        self,
        home: Path,
        bootstrap_servers: str,
        dag_files: Iterable[Path],
        postgres: OwnPostgres,
        *,
        components: Sequence[str] = COMPONENTS,
        path: str = "",
        **variables: str,
    ) -> None:
        self.home = home
        self.dags = home / "dags"
        self.dags.mkdir(parents=True)
        for file in dag_files:
            shutil.copy(file, self.dags)
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}{path}"
        self.components = tuple(components)
        self.postgres = postgres
        self.database = f"airflow-{port}"
        self.environment = {
            **demo_environment(home, self.dags, bootstrap_servers),
            **QUICK,
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.database_url(self.database),
            **variables,
        }
        self._running: dict[str, SupervisedProcess] = {}
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        self.make_database()
        try:
            for component in self.components:
                self.start(component)
            self._wait(self._is_ready, "ready", READY)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        # The api-server last: tasks that are still running report to it.
        others = [component for component in self.components if component != API_SERVER]
        with ThreadPoolExecutor(max(1, len(others))) as at_the_same_time:
            list(at_the_same_time.map(self.stop, others))
        self.stop(API_SERVER)

    def make_database(self) -> None:
        """Create its database, from a copy where there is one: the tables take ten seconds and more."""
        write_config(self.home)
        if not self.postgres.has_database(MIGRATED):
            self.postgres.make_or_copy(MIGRATED, self._migrate)
        self.postgres.create_database(self.database, template=MIGRATED)

    def _migrate(self, url: str) -> None:
        migrate_airflow({**self.environment, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}, self.home)

    def log_file(self, component: str) -> Path:
        """What a component says."""
        return self.home / f"{component}.log"

    def start(self, component: str) -> None:
        """Start one component, without waiting for it."""
        kind = component.removesuffix(SECOND)
        command = [sys.executable, "-m", "airflow", *(["celery"] if kind == WORKER else []), kind]
        if kind == WORKER:
            command += ["--celery-hostname", f"{component}@{LOOPBACK}"]
        if kind in SKIP_SERVE_LOGS:
            command.append("--skip-serve-logs")
        with pytest.MonkeyPatch.context() as ours:
            for name, value in self.environment.items():
                ours.setenv(name, value)
            self._running[component] = SupervisedProcess(command, self.log_file(component), self.home)

    def stop(self, component: str) -> None:
        """End one component with all that it has started."""
        process = self._running.pop(component, None)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            if component.removesuffix(SECOND) == TRIGGERER:
                # It may overlook for ten seconds that its triggers have ended, which they do in a process of
                # their own.
                ending = psutil.Process(process.pid)
                started = ending.children(recursive=True)
                ending.terminate()
                self._wait(lambda: all(map(has_ended, started)), "the triggers to end")
                ending.kill()
        process.end_all()

    def kill(self, component: str) -> None:
        """End one component by SIGKILL, with all that it has started; :meth:`start` starts another one."""
        process = self._running.pop(component)
        with contextlib.suppress(psutil.NoSuchProcess):
            killed = psutil.Process(process.pid)
            started = killed.children(recursive=True)
            killed.kill()
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.end_all()

    def pid(self, component: str) -> int:
        """Return the process id of a component."""
        return self._running[component].pid

    def restart_triggerer(self) -> None:
        """Stop the triggerer, start another one, and return when that one is there."""
        self.stop(TRIGGERER)
        since = datetime.now(tz=timezone.utc)
        self.start(TRIGGERER)
        self._wait(lambda: self._heartbeat("triggerer") > since, "a new triggerer", READY)

    def api(self, method: str, path: str, **parameters: Any) -> Any:
        """Ask Airflow's REST API; the path is that below /api/v2/."""
        if self._client is None:
            token = httpx.get(f"{self.url}/auth/token", timeout=DEADLINE).json()["access_token"]
            headers = {"Authorization": f"Bearer {token}"}
            self._client = httpx.Client(base_url=f"{self.url}/api/v2/", headers=headers, timeout=DEADLINE)
        answer = self._client.request(method, path, **parameters)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        if method != "GET":
            self.wait_for_commits()
        return answer.json() if answer.content else None

    def pause(self, dag_id: str, *, paused: bool = True) -> None:
        """Pause a DAG, or let it run. What watches for it ends, or begins, when its file is read again."""
        self.api("PATCH", f"dags/{dag_id}", json={"is_paused": paused})

    def trigger(self, dag_id: str, **conf: Any) -> str:
        """Start a run by hand and return its id."""
        body = {"logical_date": datetime.now(tz=timezone.utc).isoformat(), "conf": conf}
        return str(self.api("POST", f"dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def clear(self, dag_id: str, run_id: str, *tasks: str | list[Any], downstream: bool = False) -> set[str]:
        """
        Clear tasks of a run as the UI does, and return those that Airflow has cleared with them.

        :param tasks: names, or ``[name, map index]``.
        """
        which = {"dag_run_id": run_id, "task_ids": list(tasks), "include_downstream": downstream}
        how = {"dry_run": False, "only_failed": False, "reset_dag_runs": True}
        found = self.api("POST", f"dags/{dag_id}/clearTaskInstances", json={**which, **how})
        return {each["task_id"] for each in found["task_instances"]}

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG, the oldest first, as the REST API tells them."""
        answer = self.api("GET", f"dags/{dag_id}/dagRuns", params={"order_by": "id", "limit": 100})
        return list(answer["dag_runs"])

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return {task_id: state} of a run."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        tasks = self.api("GET", path, params={"limit": 100})["task_instances"]
        return {task["task_id"]: task["state"] for task in tasks}

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task of a run has returned."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.api("GET", path, params={"deserialize": False, "stringify": False})["value"]

    def events(self, asset: str) -> list[dict[str, Any]]:
        """
        Return the events of an asset, the oldest first; those of a watcher have a payload in their extra.
        """
        like = {"name_pattern": asset, "order_by": "timestamp", "limit": 100}
        found: list[dict[str, Any]] = []

        def told() -> bool:
            # Airflow 3.3 answers 500 while one of the runs that an event has made has not begun.
            with contextlib.suppress(AssertionError):
                found[:] = self.api("GET", "assets/events", params=like)["asset_events"]
                return True
            return False

        self._wait(told, f"the events of {asset}")
        return [event for event in found if event["name"] == asset]

    def asset_state(self, asset: str) -> dict[str, Any]:
        """Return what an asset's triggers and tasks keep between two runs (Airflow 3.3)."""
        assets = self.api("GET", "assets", params={"name_pattern": asset})["assets"]
        (asset_id,) = (each["id"] for each in assets if each["name"] == asset)
        kept = self.api("GET", f"assets/{asset_id}/state-store")["asset_state_store"]
        return {entry["key"]: entry["value"] for entry in kept}

    def wait_for_runs(self, dag_id: str, count: int, state: str = "success") -> list[dict[str, Any]]:
        """Wait until a DAG has so many runs that ended, and return them all."""

        def ended() -> bool:
            return sum(run["state"] in ("success", "failed") for run in self.runs(dag_id)) >= count

        self._wait(ended, f"{count} runs of {dag_id}")
        runs = self.runs(dag_id)
        assert {run["state"] for run in runs[:count]} == {state}, runs
        return runs

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
        """Wait until a condition holds; a component that has ended meanwhile is told of."""
        self._wait(condition, what, seconds)

    def said(self) -> str:
        """Return the end of what each component has said, for a test that fails."""
        texts = []
        for component in self.components:
            if (file := self.log_file(component)).exists():
                tail = file.read_text(errors="replace").splitlines()[-LINES:]
                texts.append("\n".join([f"=== {component}", *(line[:WIDTH] for line in tail)]))
        for file in sorted((self.home / "airflow" / "logs").rglob("attempt=*.log")):
            said = file.read_text(errors="replace")
            if '"level":"error"' in said:
                texts.append(f"=== {file.parent}\n{said[-LINES * WIDTH :]}")
        return "\n".join(texts)

    def wait_for_commits(self) -> None:
        """
        Wait until a change that was answered is committed, which Airflow 3.3 does after it has answered.
        """
        under_way = self.postgres.transactions(self.database)
        until(lambda: not under_way & self.postgres.transactions(self.database), "Airflow to commit")

    def _wait(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
        def holds() -> bool:
            if condition():
                return True
            for component, process in self._running.items():
                assert process.status is None, f"{component} has ended"
            return False

        try:
            until(holds, what, seconds, TICK)
        except AssertionError as error:
            error.add_note(self.said())
            raise

    def _health(self) -> Mapping[str, Any]:
        health: dict[str, Any] = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=DEADLINE).json()
        return health

    def _is_ready(self) -> bool:
        try:
            health = self._health()
        except httpx.TransportError:
            return False  # it does not listen yet
        watched = [name for name, component in HEALTH.items() if component in self.components]
        return all(health[name]["status"] == "healthy" for name in watched) and (
            DAG_PROCESSOR not in self.components or self._has_all_dags()
        )

    def _has_all_dags(self) -> bool:
        errors = self.api("GET", "importErrors")["import_errors"]
        assert not errors, errors
        files = {dag["relative_fileloc"] for dag in self.api("GET", "dags")["dags"]}
        return files >= {file.name for file in self.dags.glob("*.py")}

    def _heartbeat(self, component: str) -> datetime:
        return datetime.fromisoformat(self._health()[component][f"latest_{component}_heartbeat"])
