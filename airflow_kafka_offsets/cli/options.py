"""What do the commands share: options, exit codes, the client, and how they print?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.parameters import parse_seconds
from airflow_kafka_offsets.model.table import align
from airflow_kafka_offsets.model.text import MAX_SIZE, too_large

REFUSED = 1
USAGE = 2

_CALLS = 4
"""How many times the time of one call all calls of a command may take together."""

LONGEST_TIMEOUT = 3_600.0
"""Seconds, as for :data:`airflow_kafka_offsets.kafka.client.LONGEST_TIMEOUT`, which is not loaded for ``--help``."""


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """
    A duration: seconds, or ISO 8601 text such as ``PT10M``.

    :param most: the largest one.
    :param zero: whether 0 is one.
    """

    name = "float"

    def __init__(self, most: float, *, zero: bool = False) -> None:
        self._most = most
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the option's text."""
        try:
            return parse_seconds(value, "found", most=self._most, zero=self._zero) or 0.0
        except UsageError as error:
            self.fail(str(error), param, ctx)


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
            type=Seconds(LONGEST_TIMEOUT),
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


def read_given(path: Path) -> str:
    """
    Read a file that the user names.

    :raises UsageError: if that cannot be done; what is in it is not shown.
    """
    try:
        if (size := path.stat().st_size) > MAX_SIZE:
            raise UsageError(too_large(str(path), size))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: is no text in UTF-8; expected a receipt as --output json prints it"
        ) from None


def not_written(what: str, error: OSError, outcome: str = "") -> KafkaOffsetsError:
    """
    Return the error for a standard output that takes no more, and let it take what is left.

    :param what: what was to be written.
    :param outcome: what else is to be said.
    """
    # Python would fail on the rest once more when it ends, in words of its own.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    return KafkaOffsetsError(f"{what} cannot be written: {error.strerror}{outcome}")


def print_json(value: Mapping[str, Any]) -> None:
    """Print plain JSON."""
    click.echo(json.dumps(value, indent=2))


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    for line in align(rows):
        click.echo(line)
