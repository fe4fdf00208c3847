"""
Measures what the Offsets tab costs Airflow's API server: ``python benchmarks/tab.py``.

It fills a separate database, starts an API server with one process on it, and prints how long the tab's
responses take. It also prints by what factor Airflow's own list of DAGs is slower while a hundred viewers
request histories, or receipts of 2,000 partitions. For comparison, the viewers also request Airflow's
version, the minimum cost of a hundred requests. Needs the development environment, but no Kafka.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import httpx

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow
from airflow_kafka_offsets.local.process import SupervisedProcess

VIEWERS = 100
PARTITIONS = 2_000
RECEIPTS = 100
READY = 180.0
DEADLINE = 300.0
ROUNDS = 40

_FILL = """
import sys
sys.path[:0] = {support!r}
from datetime import datetime
from airflow.sdk import DAG
from airflow_metadata import Metadata
from offsets_receipts import receipt
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

metadata = Metadata()
for number in range({dags}):
    name = f"pipeline_{{number}}"
    with DAG(name, start_date=datetime(2026, 1, 1), schedule=None) as dag:
        CommitOffsetsOperator(task_id="commit", group_id=name, offsets={{"orders": {{"0": 1}}}})
        ResetOffsetsOperator(task_id="reset", group_id=name, to_offset="earliest")
    metadata.add_dag(dag)
    metadata.add_runs(name, {runs}, {{"commit": receipt(name, 40, 60)}})
    metadata.add_run(name, {{"reset": receipt(name, 60, 10), "commit": receipt(name, 10, 20)}})
numbers = {{str(number): 1_000_000 + number for number in range({partitions})}}
columns = dict.fromkeys(("before", "after", "log_start", "log_end"), {{"orders": numbers}})
with DAG("large", start_date=datetime(2026, 1, 1), schedule=None) as dag:
    CommitOffsetsOperator(task_id="commit", group_id="large", offsets={{"orders": {{"0": 1}}}})
metadata.add_dag(dag)
metadata.add_runs("large", {receipts}, {{"commit": {{**receipt("large", 1, 2), **columns}}}})
"""


class Server:
    """
    An API server and a logged-in user.

    :param home: the server's own directory.
    :param variables: environment variables of the server.
    """

    def __init__(self, home: Path, dags: int, runs: int, **variables: str) -> None:
        (home / "dags").mkdir()
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        self.environment = {
            **demo_environment(home, home / "dags", f"{LOOPBACK}:1"),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **variables,
        }
        migrate_airflow(self.environment, home)
        tests = Path(__file__).parents[1] / "tests"
        fill = _FILL.format(
            support=[str(tests / "support")], dags=dags, runs=runs, partitions=PARTITIONS, receipts=RECEIPTS
        )
        # Airflow keeps the file of a DAG.
        file = home / "fill.py"
        file.write_text(fill, encoding="utf-8")
        with (home / "fill.log").open("w") as log:
            done = subprocess.run(
                [sys.executable, str(file)], env=self.environment, check=False, stdout=log, stderr=log
            )
        if done.returncode:
            raise RuntimeError((home / "fill.log").read_text()[-2000:])
        os.environ.update(self.environment)
        command = [sys.executable, "-m", "airflow", "api-server"]
        self._process = SupervisedProcess(command, home / "api-server.log", home)
        end = time.monotonic() + READY
        while not self._listens():
            if time.monotonic() > end or self._process.status is not None:
                raise RuntimeError(f"the API server does not start, see {home / 'api-server.log'}")
            time.sleep(0.5)
        token = httpx.get(f"{self.url}/auth/token", timeout=DEADLINE).json()["access_token"]
        self.headers = {"Authorization": f"Bearer {token}"}

    def _listens(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def end(self) -> None:
        """End the server."""
        self._process.end_all()

    def client(self) -> httpx.Client:
        """Return a client that is logged in."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=DEADLINE)


def seconds(client: httpx.Client, path: str) -> float:
    """Return how long a response takes."""
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


def own_list(client: httpx.Client) -> float:
    """Return how long Airflow's own list takes."""
    return seconds(client, "/api/v2/dags?limit=50")


def ask_at_once(url: str, headers: dict[str, str], paths: list[str]) -> list[float]:
    """Return how long each viewer waits. Runs in a separate process, so that it does not delay the timing."""
    limits = httpx.Limits(max_connections=VIEWERS)
    with (
        httpx.Client(base_url=url, headers=headers, timeout=DEADLINE, limits=limits) as client,
        ThreadPoolExecutor(VIEWERS) as at_once,
    ):
        return list(at_once.map(lambda path: seconds(client, path), paths))


def under_load(server: Server, viewers: Executor, paths: Iterable[str]) -> tuple[list[float], list[float]]:
    """Return how long Airflow's own list takes during the viewers' requests, and how long viewers wait."""
    with server.client() as own:
        own_list(own)
        asked = viewers.submit(ask_at_once, server.url, server.headers, list(paths))
        found = []
        while not asked.done():
            found.append(own_list(own))
            time.sleep(0.02)
        return found, asked.result()


@click.command()
@click.option("--dags", default=40, show_default=True, help="DAGs, each with a pipeline.")
@click.option("--runs", default=200, show_default=True, help="Runs of each DAG.")
@click.option("--postgresql", is_flag=True, help="Use a separate PostgreSQL instead of SQLite.")
def main(dags: int, runs: int, postgresql: bool) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        variables = {}
        if postgresql:
            sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
            from own_postgres import own_postgres

            database = stack.enter_context(own_postgres()).create_database("tab")
            variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        home = stack.enter_context(tempfile.TemporaryDirectory())
        server = Server(Path(home), dags, runs, **variables)
        stack.callback(server.end)
        if postgresql:
            # PostgreSQL would do this automatically within a minute.
            subprocess.run(["psql", database.replace("+psycopg2", ""), "-qc", "ANALYZE"], check=True)
        client = stack.enter_context(server.client())
        viewers = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
        _measure(server, client, viewers)


def _measure(server: Server, client: httpx.Client, viewers: Executor) -> None:
    tab = "/kafka-offsets/api"
    own_list(client)
    alone = [own_list(client) for _ in range(ROUNDS)]
    usual = statistics.median(alone)
    say(f"Airflow's list of DAGs alone: {usual * 1000:.0f} ms, {max(alone) * 1000:.0f} ms at most")
    cold = seconds(client, f"{tab}/pipelines")
    warm = statistics.median(seconds(client, f"{tab}/pipelines") for _ in range(10))
    listed = client.get(f"{tab}/pipelines").json()
    say(f"The tab's list of {len(listed['pipelines'])} pipelines: {cold:.2f} s, again {warm * 1000:.0f} ms")
    histories = [
        f"{tab}/dags/{each['dag_id']}/pipelines/{each['key']}/history" for each in listed["pipelines"]
    ]
    receipts = [f"{tab}/dags/large/runs/many__{number}/tasks/commit/-1" for number in range(RECEIPTS)]
    one = [histories[0]] * VIEWERS
    version = ["/api/v2/version"] * VIEWERS
    under_load(server, viewers, version)
    for what, paths in (
        ("Airflow's version, 100 times", version),
        ("100 histories of all pipelines", (histories * VIEWERS)[:VIEWERS]),
        ("100 histories of one pipeline", one),
        ("100 receipts of 2,000 partitions", receipts),
        ("one receipt of 2,000 partitions, 100 times", receipts[:1] * VIEWERS),
    ):
        own, waits = under_load(server, viewers, paths)
        say(
            f"{what}: {statistics.median(waits):.2f} s, {max(waits):.2f} s at most. Airflow's list meanwhile "
            f"{statistics.median(own) / usual:.1f} times as long, {max(own) / usual:.1f} times at most"
        )


say: Callable[[Any], None] = click.echo


if __name__ == "__main__":
    main()
