"""
Does the whole job work on this machine? Real events, a real Kafka, a real Spark, three days of a DAG.

Everything it writes is in one directory, everything it starts is on loopback and ended with it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_kafka_offsets.errors import KafkaOffsetsError, SetupError
from airflow_kafka_offsets.local.demo_days import MARK
from airflow_kafka_offsets.local.environment import check_environment
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.tools import KafkaTools

GROUP = "flights-daily"
FIRST_DAY = date(2013, 1, 1)
DAY_TIMEOUT = 600.0
_STARTING = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")


def run_demo(
    *, directory: Path | None = None, days: int = 3, keep: bool = False, console: Console | None = None
) -> int:
    """
    Run the demo and show what came of it.

    :param directory: where its files go; a new temporary directory by default. It is kept.
    :param days: number of days to run, from 1 January 2013.
    :param keep: leave Kafka running and say how to look around.
    :param console: where to print.
    :return: exit status: 0 if everything agrees.
    """
    console = console or Console()
    home = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="airflow-kafka-offsets-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        with _terminating():
            dag_file = _find_dag()
            _check_machine(console)
            kafka = EmbeddedKafka(
                home / "kafka", progress=lambda line: console.print(f"  {line}", highlight=False)
            )
            console.print("[bold]Kafka[/]: starting a real broker on loopback")
            with kafka:
                console.print(f"  ready at {kafka.bootstrap_servers}")
                environment = demo_environment(home, dag_file.parent, kafka.bootstrap_servers)
                console.print("[bold]Airflow[/]: migrating a private database")
                migrate_airflow(environment, home)
                write_environment(environment, home)
                results = _run_days(environment, home, dag_file, days, console)
                agrees = _report(results, _published(home), KafkaTools(kafka.bootstrap_servers), console)
                _say_where(home, kafka, keep, console)
                if keep:
                    kafka.leave_running()
    except KeyboardInterrupt:
        console.print("\n[yellow]Stopped[/]; nothing is left running.")
        return 130
    except KafkaOffsetsError as error:
        console.print(
            f"\nError: {error}\nIts files are in {home}", highlight=False, markup=False, soft_wrap=True
        )
        return 1
    return 0 if agrees else 1


@contextmanager
def _terminating() -> Iterator[None]:
    """Make SIGTERM and a closed terminal end the demo as Ctrl-C does, so that what it started is ended in order."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: nohup does that to SIGHUP.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _find_dag() -> Path:
    """Return the DAG's file: beside the package in a checkout, inside it where it was installed."""
    here = Path(__file__).parent
    for place in (here.parents[1] / "dags_examples", here / "dags_examples"):
        if (place / "daily_flights.py").is_file():
            return place / "daily_flights.py"
    raise SetupError(
        "dags_examples/daily_flights.py is not there: run the demo from a checkout, or install the package again"
    )


def _check_machine(console: Console) -> None:
    console.print("[bold]This machine[/]")
    checks = check_environment(packages=["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"])
    for check in checks:
        mark = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]"}.get(check.status, "[red]fail[/]")
        if check.status != "ok" or check.name.lower() in ("java", "pyspark"):
            console.print(f"  {mark} {check.name}: {check.found}", highlight=False)
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        raise SetupError("; ".join(f"{check.name}: {check.found}: {check.remedy}" for check in failed))


def demo_environment(home: Path, dags: Path, bootstrap_servers: str) -> dict[str, str]:
    """Return the environment of an Airflow that knows nothing of the user's, with the demo's connections."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "SPARK_", "PYSPARK_", "KAFKA_"))
    }
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


def write_environment(environment: Mapping[str, str], home: Path) -> Path:
    """Write what the demo sets as a file for a shell, so that its Airflow can be looked at and used."""
    file = home / "environment.sh"
    ours = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    file.write_text(
        "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(ours.items())),
        encoding="utf-8",
    )
    return file


def migrate_airflow(environment: Mapping[str, str], home: Path) -> None:
    """Make the database of an Airflow that is used for nothing else."""
    (home / "airflow").mkdir(parents=True, exist_ok=True)
    log = home / "airflow-db-migrate.log"
    for line in _lines([sys.executable, "-m", "airflow", "db", "migrate"], environment, log):
        del line


def _run_days(
    environment: Mapping[str, str], home: Path, dag_file: Path, days: int, console: Console
) -> list[dict[str, Any]]:
    """Run the DAG day by day in a child process, and tell of its tasks."""
    texts = [(FIRST_DAY + timedelta(days=number)).isoformat() for number in range(days)]
    command = [sys.executable, "-m", "airflow_kafka_offsets.local.demo_days", str(dag_file), *texts]
    results: list[dict[str, Any]] = []
    for line in _lines(command, environment, home / "airflow-dag.log"):
        if line.startswith(MARK):
            told = json.loads(line.removeprefix(MARK))
            if "begin" in told:
                console.print(f"[bold]Day {told['begin']}[/]:", end="")
            else:
                results.append(told)
                console.print(f" {told['state']}")
        elif started := _STARTING.search(line):
            console.print(f" {started[1]}", end="")
    return results


def _lines(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """
    Run a command in a process group of its own, keep what it says in a file, and return it line by line.

    :raises SetupError: if it does not end well, with the end of what it said.
    """
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command,
            env=dict(environment),
            # Spark makes a directory "artifacts" where it is started.
            cwd=log.parent,
            # Nothing is written to it: its end tells the child that this process is gone.
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
            assert child.stdout is not None  # noqa: S101
            for line in child.stdout:
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
    """End a child with all that it started (Spark is one of them); the group is its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            continue


def _published(home: Path) -> int:
    """Count the rows of all days that were published, those of an earlier demo in this directory too."""
    return sum(
        json.loads(file.read_text())["rows"]
        for file in (home / "flights" / "output" / "published").glob("*.json")
    )


def _report(results: list[dict[str, Any]], published: int, tools: KafkaTools, console: Console) -> bool:
    """Show a line per day and what Kafka's own tool says; return whether everything agrees."""
    table = Table(title="What the days left in consumer group flights-daily")
    for column in ("day", "flights that left", "offsets before", "offsets after", "committed", "lag"):
        table.add_column(column, justify="right")
    agrees = bool(results)
    for result in results:
        receipt, reading = result["commit"], result["gate"]
        records = result["produce"]["records"]
        agrees = agrees and records == result["publish"]["rows"] and reading["reached"]
        table.add_row(
            result["day"],
            str(records),
            _offsets(receipt["before"]),
            _offsets(receipt["after"]),
            str(receipt["records"]),
            str(reading["remaining"]),
        )
    console.print(table)
    console.print("[bold]Kafka's own tool says[/] (kafka-consumer-groups --describe):")
    console.print(tools.describe(GROUP).strip("\n"), highlight=False, markup=False, soft_wrap=True)
    rows = tools.describe_rows(GROUP)
    lag = sum(row["lag"] or 0 for row in rows)
    committed = sum(row["current_offset"] or 0 for row in rows)
    agrees = agrees and lag == 0 and committed == published
    verdict = "[green]Everything agrees[/]" if agrees else "[red]Something does not agree[/]"
    console.print(f"{verdict}: {published} flights left, {committed} offsets are committed, lag {lag}.")
    return agrees


def _offsets(positions: Mapping[str, Mapping[str, int | None]]) -> str:
    """Return the offsets of the one topic, a partition after the other."""
    return " ".join(
        "-" if offset is None else str(offset) for topic in positions.values() for offset in topic.values()
    )


def _say_where(home: Path, kafka: EmbeddedKafka, keep: bool, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(
        f"Files: {home / 'flights' / 'output'} (Parquet by day), {home / 'flights' / 'checkpoint'} (Spark's checkpoint)"
    )
    say(f"Logs:  {home / 'airflow-dag.log'}, {kafka.log_file}")
    tool = (
        shutil.which("airflow-kafka-offsets", path=str(Path(sys.executable).parent))
        or "airflow-kafka-offsets"
    )
    say(f"Look:  {tool} checkpoint show {home / 'flights' / 'checkpoint'}")
    if keep:
        since = '{"since": "2013-01-02T00:00:00-05:00"}'
        say(f"Go on: . {home / 'environment.sh'}; airflow dags test recover_flights --conf '{since}'")
        say(f"       {tool} group lag {GROUP} --bootstrap-server {kafka.bootstrap_servers}")
        say(f"Kafka still runs as process {kafka.pid}; end it with: kill {kafka.pid}")
