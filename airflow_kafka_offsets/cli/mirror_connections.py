"""Options of a failover: the mirror and the permissions. They also open the clients of both clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.cli.connections import BrokerOptions, open_client
from airflow_kafka_offsets.cli.options import EXISTING_FILE, choice_option, combine_options
from airflow_kafka_offsets.errors import BrokerUnavailableError, TokenUnavailableError
from airflow_kafka_offsets.model.failover_plan import DeletedPolicy, FailoverPolicy, UnknownPolicy
from airflow_kafka_offsets.model.mirror import Mirror, SyncsOn
from airflow_kafka_offsets.model.wording import unexpected

_SOURCE_TIMEOUT = 10.0
"""Seconds in which the old cluster must answer; otherwise the failover uses the data of earlier commits."""


def _read_mirror(topic_map: Sequence[str], **options: Any) -> Mirror:
    topics = {}
    for each in topic_map:
        topic, separator, name = each.partition("=")
        if not separator or topic in topics:
            raise unexpected("topic_map", each, "TOPIC=NAME, once for each topic")
        topics[topic] = name
    given = {name: value for name, value in {**options, "topics": topics}.items() if value}
    # The key of the option --topic-map has another name.
    return Mirror.from_keys(given, {**{name: name for name in given}, "topics": "topic_map"})


mirror_options = combine_options(
    "mirror",
    _read_mirror,
    click.option(
        "--prefix", metavar="TEXT", help="Text that the mirror puts before names of topics, as 'primary.'."
    ),
    click.option(
        "--topic-map",
        metavar="TOPIC=NAME",
        multiple=True,
        help="A topic's name on the mirror; may be repeated.",
    ),
    click.option(
        "--syncs-topic", metavar="TOPIC", help="MirrorMaker's syncs topic. Default: the only such topic."
    ),
    choice_option("--syncs-on", SyncsOn, "target", "The cluster that has the offset syncs."),
)


def _read_to(**options: Any) -> BrokerOptions:
    given = {name.removeprefix("to_"): value for name, value in options.items()}
    return BrokerOptions(click.get_current_context().params["timeout"], **given, prefix="to_")


to_options = combine_options(
    "to",
    _read_to,
    click.option("--to-bootstrap-server", metavar="HOST:PORT[,...]", help="The mirror's cluster."),
    click.option(
        "--to-command-config", type=EXISTING_FILE, help="File of librdkafka properties for the mirror."
    ),
    click.option("--to-kafka-config-id", metavar="ID", help="Airflow connection of the mirror."),
)

source_is_down_option = click.option("--source-is-down", is_flag=True, help="Do not ask the old cluster.")

failover_policy_options = combine_options(
    "policy",
    FailoverPolicy,
    choice_option(
        "--on-unknown", UnknownPolicy, "fail", "For a partition whose position on the mirror is unknown."
    ),
    choice_option(
        "--on-out-of-range", DeletedPolicy, "fail", "For a position that the mirror has deleted already."
    ),
    click.option(
        "--allow-running-mirror",
        is_flag=True,
        help="Move groups although a running mirror copies their offsets.",
    ),
)


def open_if_reachable(config: Mapping[str, Any], timeout: float) -> OffsetsClient | None:
    """Return a client of the old cluster; ``None`` if the cluster does not answer."""
    source = open_client(config, min(timeout, _SOURCE_TIMEOUT))
    try:
        source.cluster_id()
    except TokenUnavailableError as error:
        error.append("give --source-is-down if the old cluster is gone")
        raise
    except BrokerUnavailableError as error:
        click.echo(f"The old cluster does not answer: {error}", err=True)
        return None
    return source
