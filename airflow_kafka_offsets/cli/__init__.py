"""What can be asked and done from a terminal? ``airflow-kafka-offsets``, which needs no Airflow to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.cli.checkpoint import checkpoint
from airflow_kafka_offsets.cli.drift import drift
from airflow_kafka_offsets.cli.group import group
from airflow_kafka_offsets.cli.options import (
    REFUSED,
    USAGE,
    broker_config,
    broker_options,
    not_written,
    output_option,
    print_json,
)
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-kafka-offsets")
def cli() -> None:
    """Kafka consumer offsets of Spark pipelines: look at them and move them."""


cli.add_command(checkpoint)
cli.add_command(group)
cli.add_command(drift)


@cli.command()
@click.option(
    "--package", "packages", multiple=True, metavar="GROUP:ARTIFACT:VERSION", help="As for --packages."
)
@click.option("--jar", "jars", multiple=True, metavar="PATH", help="As for --jars.")
@broker_options
@output_option
def doctor(packages: Sequence[str], jars: Sequence[str], output: str, **broker: Any) -> None:
    """Check this machine, and a broker if one is named."""
    from airflow_kafka_offsets.local.broker_checks import check_broker
    from airflow_kafka_offsets.local.environment import check_environment

    checks = check_environment(packages=packages, jars=jars)
    if broker["bootstrap_server"] or broker["config_file"]:
        checks += check_broker(
            broker_config(broker["bootstrap_server"], broker["config_file"]), broker["timeout"]
        )
    if output == "json":
        print_json({"checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            click.echo(f"{check.status:5} {check.name}: {check.found}")
            if check.remedy and check.status != "ok":
                click.echo(f"      {check.remedy}")
    if any(check.status == "fail" for check in checks):
        raise SystemExit(REFUSED)


@cli.command()
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Where its files go.")
@click.option("--days", type=click.IntRange(1, 28), default=3, show_default=True, help="Days to run.")
@click.option("--keep", is_flag=True, help="Leave Kafka running and say how to look around.")
def demo(directory: Path | None, days: int, keep: bool) -> None:
    """Run the whole job: real events, a real Kafka, a real Spark, three days of a DAG."""
    from airflow_kafka_offsets.local.demo import run_demo

    raise SystemExit(run_demo(directory=directory, days=days, keep=keep))


@cli.group()
def kafka() -> None:
    """A Kafka on this machine, for trying things out."""


directory_option = click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), help="Where its data are kept."
)


@kafka.command("start")
@directory_option
@click.option("--port", type=int, help="Port to listen on; a free one by default.")
@output_option
def kafka_start(directory: Path | None, port: int | None, output: str) -> None:
    """Start a Kafka in the background, or say where it runs already."""
    from airflow_kafka_offsets.local.background import start_background

    broker = start_background(directory, port, progress=lambda line: click.echo(line, err=True))
    if output == "json":
        print_json(
            {
                "bootstrap_servers": broker.bootstrap_servers,
                "pid": broker.pid,
                "directory": str(broker.directory),
                "log_file": str(broker.log_file),
            }
        )
    else:
        click.echo(f"Kafka runs at {broker.bootstrap_servers} (pid {broker.pid}, log {broker.log_file})")


@kafka.command("stop")
@directory_option
@output_option
def kafka_stop(directory: Path | None, output: str) -> None:
    """Stop the Kafka in the background; its data stay."""
    from airflow_kafka_offsets.local.background import stop_background

    stopped = stop_background(directory)
    if output == "json":
        print_json({"stopped": stopped})
    else:
        click.echo("Kafka is stopped" if stopped else "No Kafka was running")


def main() -> None:
    """Run the command line: exit 0 done, 1 refused or failed, 2 usage."""
    # What others have named may not fit the terminal's encoding.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _run()
    except UsageError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(USAGE)
    except KafkaOffsetsError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(REFUSED)


def _run() -> None:
    try:
        cli()
    except OSError as error:
        if error.filename is not None:
            raise KafkaOffsetsError(f"{error.filename}: {error.strerror}") from error
        raise not_written("the output", error) from error
