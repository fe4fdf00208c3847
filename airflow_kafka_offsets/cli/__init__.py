"""The command ``airflow-kafka-offsets``, which needs no running Airflow."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.cli.connections import BrokerOptions, broker_options
from airflow_kafka_offsets.cli.execution import REFUSED, USAGE, output_error, print_error, print_result
from airflow_kafka_offsets.cli.options import DIRECTORY, CommandGroup, output_option, refuse_unused
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError

PROGRAM = "airflow-kafka-offsets"

_MODULES = {name: name for name in ("checkpoint", "drift", "failover", "group", "recover", "wait")}


@click.group(cls=CommandGroup, elsewhere=_MODULES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Show and move the Kafka consumer offsets of Spark pipelines."""


@cli.command()
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="GROUP:ARTIFACT:VERSION",
    help="A package for Spark's --packages; may be repeated.",
)
@click.option(
    "--jar", "jars", multiple=True, metavar="PATH", help="A jar for Spark's --jars; may be repeated."
)
@broker_options
@output_option
def doctor(packages: Sequence[str], jars: Sequence[str], broker: BrokerOptions, output: str) -> None:
    """Check this machine, and a broker if you name one."""
    from airflow_kafka_offsets.local.environment import check_broker, check_environment

    if not broker.option_names:
        refuse_unused("without a broker", "timeout")
    checks = check_environment(packages=packages, jars=jars)
    if broker.option_names:
        checks += check_broker(broker.client_config(), broker.timeout)
    lines = []
    for check in checks:
        lines.append(f"{check.status:5} {check.name}: {check.found}")
        if check.remedy and check.status != "ok":
            lines.append(f"      {check.remedy}")
    print_result(output, {"checks": [check._asdict() for check in checks]}, lines)
    if any(check.status == "fail" for check in checks):
        raise SystemExit(REFUSED)


def _show_progress(*, err: bool = False) -> None:
    """Print what the programs of :mod:`airflow_kafka_offsets.local` log."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr if err else sys.stdout)
    logging.getLogger("airflow_kafka_offsets.local").setLevel(logging.INFO)


@cli.command()
@click.option("--directory", type=DIRECTORY, help="Directory for the demo's files. Default: a new one.")
@click.option("--days", type=click.IntRange(1, 28), default=3, show_default=True, help="Days to run.")
@click.option("--keep", is_flag=True, help="Leave Kafka running, and print commands to try on it.")
@click.option("--ui", is_flag=True, help="Then show the demo on Airflow's Offsets tab until Ctrl-C.")
@click.option(
    "--fail-over", is_flag=True, help="Two days on one Kafka, which is killed; the third on its mirror."
)
def demo(directory: Path | None, days: int, keep: bool, ui: bool, fail_over: bool) -> None:
    """Run a real Kafka, a real Spark and three days of a DAG."""
    from airflow_kafka_offsets.local.demo import run_demo
    from airflow_kafka_offsets.local.demo_fail_over import run_fail_over_demo

    _show_progress()
    if fail_over:
        refuse_unused("with --fail-over", "days", "keep", "ui")
    try:
        agrees = run_fail_over_demo(directory) if fail_over else run_demo(directory, days, keep=keep, ui=ui)
    except KeyboardInterrupt:
        click.echo("\nStopped; no process is left running.")
        raise SystemExit(130) from None
    raise SystemExit(0 if agrees else REFUSED)


@cli.group(cls=CommandGroup)
def kafka() -> None:
    """Run a Kafka on this machine, to try things out."""


directory_option = click.option(
    "--directory", type=DIRECTORY, help="Directory of Kafka's data. Default: in the cache."
)


@kafka.command("start")
@directory_option
@click.option("--port", type=int, help="First broker's port; the others follow. Default: free ports.")
@click.option(
    "--brokers", type=click.IntRange(1, 9), help="Number of brokers. Default: as in the directory, or 1."
)
@click.option("--secured", is_flag=True, help="With TLS, users and ACLs, in a separate directory.")
@output_option
def kafka_start(
    directory: Path | None, port: int | None, brokers: int | None, secured: bool, output: str
) -> None:
    """Start a Kafka in the background, or print its address if it runs."""
    from airflow_kafka_offsets.local.background import start_background

    _show_progress(err=True)
    kafka = start_background(directory, port, brokers, secured=secured)
    pids = ", ".join(map(str, kafka.pids))
    lines = [f"Kafka runs at {kafka.bootstrap_servers} (pid {pids}, directory {kafka.directory})"]
    if kafka.clients:
        lines.append(f"A login is required: give --command-config {kafka.clients}/airflow.properties")
    print_result(output, kafka._asdict(), lines)


@kafka.command("stop")
@directory_option
@output_option
def kafka_stop(directory: Path | None, output: str) -> None:
    """Stop the Kafka in the background; its data is kept."""
    from airflow_kafka_offsets.local.background import kafka_directory, stop_background

    stopped = stop_background(directory)
    where = kafka_directory(directory)
    lines = ["Kafka is stopped" if stopped else f"No Kafka was running in {where}"]
    print_result(output, {"stopped": stopped}, lines)


def main() -> None:
    """Run the command line: exit 0 if done, 1 if refused or failed, 2 for wrong usage, 3 if not checked."""
    if sys.stdout is None:  # closed by a caller that only needs the exit status
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
    # Names in Kafka or Airflow may not fit the terminal's encoding.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # SIGTERM and a closed terminal stop a command like Ctrl-C, so that it still prints the receipt of a move.
    stopping = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    try:
        for each in stopping:
            signal.signal(each, signal.default_int_handler)
        cli(prog_name=PROGRAM)
    except KafkaOffsetsError as error:
        failure = error
    except OSError as error:
        named = error.filename is not None
        text = f"{error.filename}: {error.strerror}"
        failure = KafkaOffsetsError(text) if named else output_error(error)
    else:
        return
    finally:
        for each in stopping:
            signal.signal(each, signal.SIG_DFL)
    print_error(f"Error: {failure}")
    sys.exit(USAGE if isinstance(failure, UsageError) else REFUSED)
