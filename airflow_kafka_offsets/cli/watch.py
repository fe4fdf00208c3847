"""Shows a reading repeatedly, until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import click

from airflow_kafka_offsets.cli.execution import REFUSED, now_text, print_result
from airflow_kafka_offsets.cli.options import Option
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.parameters import duration_text, parse_interval


class CommandReading(NamedTuple):
    """
    A command's reading as plain JSON and as lines, and whether it failed in part.

    Only what is printed is made: either takes long for tens of thousands of partitions.
    """

    value: Callable[[], dict[str, Any]]
    lines: Callable[[], list[str]]
    failed: bool = False


def _interval(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    try:
        return parse_interval(value, "watch")
    except UsageError as error:
        raise UsageError(f"{error}; what follows --watch is its DURATION: put GROUP before it") from None


watch_option: Option = click.option(
    "--watch",
    is_flag=False,
    flag_value="5s",
    metavar="[DURATION]",
    callback=_interval,
    help="Show the reading repeatedly, every 5 seconds by default, until Ctrl-C.",
)


def show_repeatedly(read: Callable[[], CommandReading], output: str, every: float | None) -> None:
    """
    Print a reading once, or repeatedly.

    A temporary error does not end the readings. Ctrl-C ends them with exit 0. As JSON, each reading is one
    line, with the time ``at``.

    :param every: seconds between two readings; ``None`` for a single one.
    """
    if every is None:
        found = read()
        as_json = output == "json"
        print_result(output, found.value() if as_json else {}, [] if as_json else found.lines())
        if found.failed:
            raise SystemExit(REFUSED)
        return
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = read()
            except KafkaOffsetsError as error:
                if not error.retriable:
                    raise
                click.echo(f"{now_text()} {error}; asked again in {duration_text(every)}", err=True)
            else:
                if output == "json":
                    click.echo(json.dumps({"at": now_text(), **found.value()}, default=str))
                else:
                    click.clear()  # does nothing if the output is not a terminal
                    print_result(output, {}, [now_text(), *found.lines()])
            time.sleep(every)
