"""What can be asked from a terminal about a checkpoint and its groups together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from airflow_kafka_offsets.cli.options import (
    REFUSED,
    broker_options,
    open_client,
    output_option,
    print_json,
    topics_option,
)
from airflow_kafka_offsets.model.drift import parse_grace, reports_json
from airflow_kafka_offsets.model.groups import Groups


@click.command()
@click.argument("uri")
@click.argument("group_id", metavar="GROUP")
@topics_option
@click.option(
    "--grace",
    default="0",
    show_default=True,
    metavar="S",
    help="Seconds, or a duration such as PT10M, after its end in which a batch need not have been committed.",
)
@broker_options
@output_option
def drift(
    uri: str, group_id: str, topics: Sequence[str] | None, grace: str, output: str, **broker: Any
) -> None:
    """
    Compare GROUP with the checkpoint at URI, and both with the log; exit 1 if they have drifted.

    GROUP is a group, or JSON such as {"orders": "orders-etl", "source:1": "other"}.
    """
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.moves.drift import pipeline_drift

    named, wait = Groups.parse(group_id, topics), parse_grace(grace)
    checkpoint = SparkCheckpoint(uri)
    with open_client(**broker) as client:
        reports = pipeline_drift(client, checkpoint, named, grace=wait)
    if output == "json":
        print_json(reports_json(reports))
    else:
        for report in reports:
            click.echo(report.table())
    if any(report.drifted for report in reports):
        raise SystemExit(REFUSED)
