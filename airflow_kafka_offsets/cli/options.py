"""What do the commands share: options, exit codes, the client, and how they print?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.plan import align

REFUSED = 1
USAGE = 2

_CALLS = 4
"""How many times the time of one call all calls of a command may take together."""

output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)

topics_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    callback=lambda _context, _option, topics: list(topics) or None,
    help="Only these; may be repeated.",
)


def broker_options(command: Any) -> Any:
    """Add the options that say which broker, and how long to wait for it."""
    for option in (
        click.option(
            "--timeout",
            type=float,
            default=30.0,
            show_default=True,
            help="Seconds for each call, and four times as much for all of a command together.",
        ),
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

    config = broker_config(bootstrap_server, config_file)
    with OffsetsClient(config, timeout=timeout, total=_CALLS * timeout) as client:
        yield client


def print_json(value: Mapping[str, Any]) -> None:
    """Print plain JSON."""
    click.echo(json.dumps(value, indent=2))


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    for line in align(rows):
        click.echo(line)
