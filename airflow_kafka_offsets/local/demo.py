"""
The demo: real events, a real Kafka, a real Spark, three days of a DAG.

Everything it writes is in one directory; everything it starts is on loopback and ends with it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_kafka_offsets.errors import KafkaOffsetsError, SetupError
from airflow_kafka_offsets.local.demo_days import MARK
from airflow_kafka_offsets.local.environment import check_environment
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.process import SupervisedProcess
from airflow_kafka_offsets.local.tools import describe_group

GROUP = "flights-daily"
FIRST_DAY = date(2013, 1, 1)
_STARTING = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")


def run_demo(
    *, directory: Path | None = None, days: int = 3, keep: bool = False, console: Console | None = None
) -> int:
    """
    Run the demo and show its results.

    :param directory: where its files go, and stay; default: a new temporary directory.
    :param days: number of days to run, from 1 January 2013.
    :param keep: leave Kafka running and print how to continue.
    :return: exit status: 0 if everything agrees.
    """
    console = console or Console()
    home = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="airflow-kafka-offsets-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        dag_file = _find_dag()
        _check_machine(console)
        console.print("[bold]Kafka[/]: starting a real broker on loopback")
        progress = lambda line: console.print(f"  {line}", highlight=False)  # noqa: E731
        with EmbeddedKafka(home / "kafka", progress=progress) as kafka:
            environment = demo_environment(home, dag_file.parent, kafka.bootstrap_servers)
            console.print("[bold]Airflow[/]: migrating a private database")
            migrate_airflow(environment, home)
            results = _run_days(environment, home, dag_file, days, console)
            agrees = _report(results, _published(home), kafka.bootstrap_servers, console)
            _print_places(home, kafka, console)
            if keep:
                _print_next_steps(environment, home, kafka, console)
                kafka.leave_running()
    except KeyboardInterrupt:
        console.print("\n[yellow]Stopped[/]; nothing is left running.")
        return 130
    except KafkaOffsetsError as error:
        _print_plain(console, f"\nError: {error}\nIts files are in {home}")
        return 1
    return 0 if agrees else 1


def _find_dag() -> Path:
    """Return the DAG's file: beside the package in a checkout, inside it where it was installed."""
    here = Path(__file__).parent
    for place in (here.parents[1], here):
        if (file := place / "dags_examples" / "daily_flights.py").is_file():
            return file
    raise SetupError(
        "dags_examples/daily_flights.py is missing: run the demo from a checkout, or install the package "
        "again"
    )


def _check_machine(console: Console) -> None:
    console.print("[bold]This machine[/]")
    checks = check_environment(packages=["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"])
    for check in checks:
        if check.status != "ok" or check.name in ("Java", "pyspark"):
            color = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
            console.print(f"  [{color}]{check.status}[/] {check.name}: {check.found}", highlight=False)
    if failed := [check for check in checks if check.status == "fail"]:
        raise SetupError("; ".join(f"{check.name}: {check.found}: {check.remedy}" for check in failed))


def demo_environment(home: Path, dags: Path, bootstrap_servers: str) -> dict[str, str]:
    """Return the environment of an Airflow apart from the user's, with the demo's connections."""
    ignored = ("AIRFLOW", "SPARK_", "PYSPARK_", "KAFKA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    return kept | {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow' / 'airflow.db'}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "FLIGHTS_HOME": str(home / "flights"),
        "JAVA_HOME": str(find_java().path.resolve().parents[1]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }


def migrate_airflow(environment: Mapping[str, str], home: Path) -> None:
    """Create the database of an Airflow."""
    (home / "airflow").mkdir(parents=True, exist_ok=True)
    for _ in _lines(["airflow", "db", "migrate"], environment, home / "airflow-db-migrate.log"):
        pass


def _run_days(
    environment: Mapping[str, str], home: Path, dag_file: Path, days: int, console: Console
) -> list[dict[str, Any]]:
    texts = [(FIRST_DAY + timedelta(days=number)).isoformat() for number in range(days)]
    command = ["airflow_kafka_offsets.local.demo_days", str(dag_file), *texts]
    results: list[dict[str, Any]] = []
    for line in _lines(command, environment, home / "airflow-dag.log"):
        if line.startswith(MARK):
            message = json.loads(line.removeprefix(MARK))
            if "begin" in message:
                console.print(f"[bold]Day {message['begin']}[/]:", end="")
            else:
                results.append(message)
                console.print(f" {message['state']}")
        elif started := _STARTING.search(line):
            console.print(f" {started[1]}", end="")
    return results


def _lines(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a Python module, write its output to a file, and yield it line by line."""
    log.write_bytes(b"")
    # Spark creates a directory "artifacts" where it is started.
    process = SupervisedProcess([sys.executable, "-m", *command], log, log.parent, environment)
    try:
        with log.open(encoding="utf-8", errors="replace") as output:
            rest, ended = "", False
            while not ended:
                # First, so that nothing that it has written before is missed.
                ended = process.status is not None
                *lines, rest = (rest + output.read()).split("\n")
                yield from lines
                time.sleep(0.1)
    finally:
        process.end()
    if process.status:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise SetupError(
            f"{' '.join(command[:2])} ended with status {process.status}; its log {log} ends with:\n{tail}"
        )


def _published(home: Path) -> int:
    """Count the rows of all published days, those of an earlier demo in this directory too."""
    files = (home / "flights" / "output" / "published").glob("*.json")
    return sum(json.loads(file.read_text())["rows"] for file in files)


def _report(results: list[dict[str, Any]], published: int, servers: str, console: Console) -> bool:
    table = Table(title=f"What the days left in consumer group {GROUP}")
    for column in ("day", "flights that left", "offsets before", "offsets after", "committed"):
        table.add_column(column, justify="right")
    for result in results:
        receipt, left = result["commit"], result["produce"]["records"]
        offsets = (_offsets(receipt["before"]), _offsets(receipt["after"]))
        table.add_row(result["day"], str(left), *offsets, str(receipt["records"]))
    console.print(table)
    console.print("[bold]Kafka's own tool says[/] (kafka-consumer-groups --describe):")
    described = describe_group(servers, GROUP)
    _print_plain(console, described.strip("\n"))
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG
    rows = [line.split() for line in described.splitlines() if line.startswith(f"{GROUP} ")]
    committed, lag = (sum(int(row[column]) for row in rows if row[column] != "-") for column in (3, 5))
    agrees = 0 < committed == published and lag == 0
    verdict = "[green]Everything agrees[/]" if agrees else "[red]Something does not agree[/]"
    console.print(f"{verdict}: {published} flights left, {committed} offsets are committed, lag {lag}.")
    return agrees


def _offsets(positions: Mapping[str, Mapping[str, int | None]]) -> str:
    offsets = [offset for topic in positions.values() for offset in topic.values()]
    return " ".join("-" if offset is None else str(offset) for offset in offsets)


def _print_plain(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_places(home: Path, kafka: EmbeddedKafka, console: Console) -> None:
    flights = home / "flights"
    _print_plain(
        console,
        f"Files: {flights / 'output'} (Parquet by day), {flights / 'checkpoint'} (Spark's checkpoint)\n"
        f"Logs:  {home / 'airflow-dag.log'}, {kafka.log_file}\n"
        f"Show:  {_command()} checkpoint show {flights / 'checkpoint'}",
    )


def _print_next_steps(
    environment: Mapping[str, str], home: Path, kafka: EmbeddedKafka, console: Console
) -> None:
    file = home / "environment.sh"
    ours = {name: value for name, value in sorted(environment.items()) if os.environ.get(name) != value}
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in ours.items())
    file.write_text("".join(exports), encoding="utf-8")
    since = '{"since": "2013-01-02T00:00:00-05:00"}'
    _print_plain(
        console,
        f"Next:  . {file}; airflow dags test recover_flights --conf '{since}'\n"
        f"       {_command()} group lag {GROUP} --bootstrap-server {kafka.bootstrap_servers}\n"
        f"Kafka still runs as process {kafka.pid}; end it with: kill {kafka.pid}",
    )


def _command() -> str:
    return str(Path(sys.executable).with_name("airflow-kafka-offsets"))
