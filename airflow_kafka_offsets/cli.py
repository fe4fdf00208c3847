"""What can be asked and done from a terminal? ``airflow-kafka-offsets``, which needs no Airflow to run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.plan import align

REFUSED = 1
USAGE = 2

output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)


def broker_options(command: Any) -> Any:
    """Add the options that say which broker, and how long to wait for it."""
    for option in (
        click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds for each call."),
        click.option(
            "--config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File of librdkafka properties, such as security.protocol=SASL_SSL.",
        ),
        click.option(
            "--bootstrap-server", "bootstrap_server", metavar="HOST:PORT[,...]", help="The Kafka cluster."
        ),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-kafka-offsets")
def cli() -> None:
    """Kafka consumer offsets of Spark pipelines: look at them and move them."""


@cli.group()
def checkpoint() -> None:
    """Spark checkpoints."""


@checkpoint.command("show")
@click.argument("uri")
@output_option
def checkpoint_show(uri: str, output: str) -> None:
    """Show the newest committed batch of the checkpoint at URI."""
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

    state = SparkCheckpoint(uri).read()
    if output == "json":
        print_json(state.as_json())
        return
    click.echo(f"query    {state.query_id}")
    click.echo(f"batch    {'none has finished' if state.batch_id is None else state.batch_id}")
    click.echo(f"pending  {'none' if state.pending_batch_id is None else state.pending_batch_id}")
    rows = [("SOURCE", "TOPIC", "PARTITION", "OFFSET")]
    for source in state.sources:
        if source.offsets is None:
            rows.append((source.source, "-" if source.kafka else "(not Kafka, or no offset yet)", "-", "-"))
        else:
            rows += [
                (source.source, tp.topic, str(tp.partition), str(end))
                for tp, end in sorted(source.offsets.items())
            ]
    print_rows(rows)


@cli.group()
def group() -> None:
    """Consumer groups."""


@group.command("lag")
@click.argument("group_id", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="Only these; may be repeated.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Up to the high watermark, or up to the last stable offset.",
)
@broker_options
@output_option
def group_lag(group_id: str, topics: Sequence[str], isolation_level: Any, output: str, **broker: Any) -> None:
    """Show how far GROUP is behind, partition by partition."""
    from airflow_kafka_offsets.kafka.positions import group_positions, lag_of
    from airflow_kafka_offsets.model.scope import TopicScope

    with open_client(**broker) as client:
        positions = group_positions(client, group_id, TopicScope.parse(list(topics)))
        lag = lag_of(client, group_id, positions, isolation_level=isolation_level)
    if output == "json":
        print_json({"group_id": group_id, **lag.as_json()})
    else:
        click.echo(lag.table())


@group.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state, such as Empty; may be repeated."
)
@broker_options
@output_option
def group_list(states: Sequence[str], output: str, **broker: Any) -> None:
    """List the groups of the cluster."""
    with open_client(**broker) as client:
        listings = [listing.as_json() for listing in client.list_groups(states or None)]
    if output == "json":
        print_json({"groups": listings})
    else:
        print_rows([("GROUP", "STATE", "TYPE"), *((g["group_id"], g["state"], g["type"]) for g in listings)])


@group.command("describe")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@broker_options
@output_option
def group_describe(group_ids: Sequence[str], output: str, **broker: Any) -> None:
    """Show the state and the members of each GROUP."""
    with open_client(**broker) as client:
        described = [description.as_json() for description in client.describe_groups(group_ids).values()]
    if output == "json":
        print_json({"groups": described})
        return
    for description in described:
        members = description["members"]
        click.echo(f"{description['group_id']}: {description['state']}, {len(members)} members")
        if members:
            rows = [("MEMBER", "CLIENT", "HOST", "PARTITIONS")]
            rows += [
                (member["member_id"], member["client_id"], member["host"], " ".join(member["partitions"]))
                for member in members
            ]
            print_rows(rows)


@cli.command()
@click.option(
    "--package", "packages", multiple=True, metavar="GROUP:ARTIFACT:VERSION", help="As for --packages."
)
@click.option("--jar", "jars", multiple=True, metavar="PATH", help="As for --jars.")
@click.option("--registry", is_flag=True, help="Also try to reach Maven Central.")
@broker_options
@output_option
def doctor(packages: Sequence[str], jars: Sequence[str], registry: bool, output: str, **broker: Any) -> None:
    """Check this machine, and a broker if one is named."""
    from airflow_kafka_offsets.local.broker_checks import check_broker
    from airflow_kafka_offsets.local.environment import check_environment

    checks = check_environment(packages=packages, jars=jars, registry=registry)
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


def broker_config(bootstrap_server: str | None, config_file: Path | None) -> dict[str, Any]:
    """
    Return the client's configuration from the options.

    :raises UsageError: if they name no broker.
    """
    from airflow_kafka_offsets.kafka.config import load_properties

    config: dict[str, Any] = dict(load_properties(config_file)) if config_file else {}
    if bootstrap_server:
        config["bootstrap.servers"] = bootstrap_server
    if "bootstrap.servers" not in config:
        raise UsageError(
            "no broker is named: give --bootstrap-server HOST:PORT, or --config FILE with bootstrap.servers"
        )
    return config


@contextmanager
def open_client(bootstrap_server: str | None, config_file: Path | None, timeout: float) -> Iterator[Any]:
    """Open a client for the broker that the options name."""
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    with OffsetsClient(broker_config(bootstrap_server, config_file), timeout=timeout) as client:
        yield client


def print_json(value: Mapping[str, Any]) -> None:
    """Print plain JSON."""
    click.echo(json.dumps(value, indent=2))


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    for line in align(rows):
        click.echo(line)


def main() -> None:
    """Run the command line: exit 0 done, 1 refused or failed, 2 usage."""
    try:
        cli()
    except UsageError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(USAGE)
    except KafkaOffsetsError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
