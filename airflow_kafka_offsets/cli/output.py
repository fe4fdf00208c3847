"""Prints results on the standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from airflow_kafka_offsets.errors import KafkaOffsetsError

REFUSED = 1
USAGE = 2


def print_result(output: str, value: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a result as JSON, or as lines."""
    for line in [json.dumps(value, indent=2)] if output == "json" else lines:
        click.echo(line)


def not_written(what: str, error: OSError, outcome: str = "") -> KafkaOffsetsError:
    """
    Return the error for a standard output that cannot be written, and discard what is left of it.

    :param outcome: what the command has changed, appended to the text.
    """
    # Python would fail on the rest again when it ends, with a text of its own.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    return KafkaOffsetsError(f"{what} cannot be written: {error.strerror}{outcome}")
