"""
The demo: real events, a real Kafka, a real Spark, three days of a DAG.

Everything it writes is in one directory; everything it starts is on loopback and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
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
from airflow_kafka_offsets.local.tools import describe_group, parse_describe

GROUP = "flights-daily"
FIRST_DAY = date(2013, 1, 1)
DAY_TIMEOUT = 600.0
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
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    for _ in _lines(command, environment, home / "airflow-db-migrate.log"):
        pass


def _run_days(
    environment: Mapping[str, str], home: Path, dag_file: Path, days: int, console: Console
) -> list[dict[str, Any]]:
    texts = [(FIRST_DAY + timedelta(days=number)).isoformat() for number in range(days)]
    command = [sys.executable, "-m", "airflow_kafka_offsets.local.demo_days", str(dag_file), *texts]
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
    """Run a command in its own process group, write its output to a file, and yield it line by line."""
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command,
            env=dict(environment),
            # Spark creates a directory "artifacts" where it is started.
            cwd=log.parent,
            # Nothing is written to it: its end shows the child that this process is gone.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                kept.write(line)
                yield line.rstrip("\n")
            child.wait(DAY_TIMEOUT)
        finally:
            _end_group(child)
    if child.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-25:])
        raise SetupError(
            f"{' '.join(command[1:4])} ended with status {child.returncode}; its log {log} ends with:\n{tail}"
        )


def _end_group(child: subprocess.Popen[str]) -> None:
    """End a child with everything that it started, such as Spark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        os.killpg(child.pid, signal.SIGKILL)


def _published(home: Path) -> int:
    """Count the rows of all published days, those of an earlier demo in this directory too."""
    files = (home / "flights" / "output" / "published").glob("*.json")
    return sum(json.loads(file.read_text())["rows"] for file in files)


def _report(results: list[dict[str, Any]], published: int, servers: str, console: Console) -> bool:
    table = Table(title=f"What the days left in consumer group {GROUP}")
    for column in ("day", "flights that left", "offsets before", "offsets after", "committed", "lag"):
        table.add_column(column, justify="right")
    for result in results:
        receipt, records = result["commit"], result["produce"]["records"]
        offsets = (_offsets(receipt["before"]), _offsets(receipt["after"]))
        remaining = result["gate"]["remaining"]
        table.add_row(result["day"], str(records), *offsets, str(receipt["records"]), str(remaining))
    console.print(table)
    console.print("[bold]Kafka's own tool says[/] (kafka-consumer-groups --describe):")
    described = describe_group(servers, GROUP)
    _print_plain(console, described.strip("\n"))
    rows = parse_describe(described)
    lag = sum(row["lag"] or 0 for row in rows)
    committed = sum(row["current_offset"] or 0 for row in rows)
    days_agree = all(
        result["produce"]["records"] == result["publish"]["rows"] and result["gate"]["reached"]
        for result in results
    )
    agrees = bool(results) and days_agree and lag == 0 and committed == published
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
    beside = Path(sys.executable).with_name("airflow-kafka-offsets")
    return str(beside) if beside.exists() else beside.name
