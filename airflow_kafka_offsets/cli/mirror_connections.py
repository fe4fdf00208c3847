"""Options that name a mirror, and the clients that they open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import connection_config, named_config, open_client
from airflow_kafka_offsets.cli.options import choice_option, combine_options
from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.model.mirror import Mirror, SyncsOn
from airflow_kafka_offsets.model.wording import unexpected

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_SOURCE_TIMEOUT = 10.0
"""Seconds in which the old cluster must answer; otherwise the failover uses the data of earlier commits."""


@dataclass(frozen=True)
class MirrorBroker:
    """The mirror's cluster, as the command line names it."""

    to_bootstrap_server: str | None = None
    to_command_config: Path | None = None
    to_kafka_config_id: str | None = None

    def config(self) -> dict[str, Any]:
        """Return the configuration of a client."""
        if self.to_kafka_config_id:
            if self.to_bootstrap_server or self.to_command_config:
                raise UsageError(
                    "--to-kafka-config-id replaces --to-bootstrap-server and --to-command-config: omit "
                    "one or the other"
                )
            return connection_config(self.to_kafka_config_id, "--to-kafka-config-id")
        return named_config(
            self.to_bootstrap_server,
            self.to_command_config,
            "no mirror is named: give --to-bootstrap-server HOST:PORT, --to-command-config FILE with "
            "bootstrap.servers, or --to-kafka-config-id ID of an Airflow connection",
        )


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

to_options = combine_options(
    "to",
    MirrorBroker,
    click.option("--to-bootstrap-server", metavar="HOST:PORT[,...]", help="The mirror's cluster."),
    click.option(
        "--to-command-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of librdkafka properties for the mirror.",
    ),
    click.option("--to-kafka-config-id", metavar="ID", help="Airflow connection of the mirror."),
)


def reachable(config: Mapping[str, Any], timeout: float) -> OffsetsClient | None:
    """Return a client of the old cluster; ``None`` if the cluster does not answer."""
    source = open_client(config, min(timeout, _SOURCE_TIMEOUT))
    try:
        source.cluster_id()
    except BrokerUnavailableError as error:
        click.echo(f"The old cluster does not answer: {error}", err=True)
        return None
    return source
