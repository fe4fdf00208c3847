"""Commands that move pipelines to a mirror of their cluster: plan, apply, back and check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import (
    Broker,
    broker_options,
    checkpoint_argument,
    connection_config,
    open_client,
)
from airflow_kafka_offsets.cli.execution import Execution, verb_options
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    Option,
    StrictCommand,
    choice_option,
    combined,
    groups_argument,
)
from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.model.mirror import Mirror, SyncsOn

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.groups import Groups

__all__ = ["failover"]

_SOURCE_TIMEOUT = 10.0
"""Seconds in which the cluster that is left must answer; else what was kept stands in for it."""


@click.group(cls=CommandGroup)
def failover() -> None:
    """Move pipelines to a mirror of their cluster, exactly where it can be known."""


@dataclass(frozen=True)
class MirrorBroker:
    """The mirror's cluster, as the command line names it."""

    to_bootstrap_server: str | None = None
    to_command_config: Path | None = None
    to_kafka_config_id: str | None = None

    def config(self) -> dict[str, Any]:
        """Return the configuration of a client."""
        from airflow_kafka_offsets.kafka.config import load_properties
        from airflow_kafka_offsets.model.kafka_security import SERVERS

        if self.to_kafka_config_id:
            if self.to_bootstrap_server or self.to_command_config:
                raise UsageError(
                    "--to-kafka-config-id replaces --to-bootstrap-server and --to-command-config: leave "
                    "one of them out"
                )
            return connection_config(self.to_kafka_config_id, "--to-kafka-config-id")
        config: dict[str, Any] = (
            dict(load_properties(self.to_command_config)) if self.to_command_config else {}
        )
        if self.to_bootstrap_server:
            config[SERVERS] = self.to_bootstrap_server
        if SERVERS not in config:
            raise UsageError(
                "no mirror is named: give --to-bootstrap-server HOST:PORT, --to-command-config FILE with "
                "bootstrap.servers, or --to-kafka-config-id ID of an Airflow connection"
            )
        return config


def _read_mirror(topic_map: Sequence[str], **options: Any) -> Mirror:
    topics = {}
    for each in topic_map:
        topic, separator, name = each.partition("=")
        if not separator or topic in topics:
            raise UsageError(f"--topic-map {each}: expected TOPIC=NAME, once for each topic")
        topics[topic] = name
    given = {name: value for name, value in {**options, "topics": topics}.items() if value}
    return Mirror.parse(given, connection=False)


mirror_options = combined(
    "mirror",
    _read_mirror,
    click.option(
        "--prefix", metavar="TEXT", help="What the mirror puts before names of topics, as 'primary.'."
    ),
    click.option(
        "--topic-map",
        metavar="TOPIC=NAME",
        multiple=True,
        help="A topic's name on the mirror; may be repeated.",
    ),
    click.option(
        "--syncs-topic", metavar="TOPIC", help="MirrorMaker's offset syncs. Default: the only such topic."
    ),
    choice_option("--syncs-on", SyncsOn, "target", "The cluster that has the offset syncs."),
)

to_options = combined(
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


def _read_policy(**options: Any) -> Any:
    from airflow_kafka_offsets.moves.failover import FailoverPolicy

    return FailoverPolicy(**options)


def _policy_options() -> Option:
    from typing import Literal

    return combined(
        "policy",
        _read_policy,
        choice_option(
            "--on-unknown",
            Literal["fail", "earliest"],
            "fail",
            "For a partition whose position on the mirror is unknown.",
        ),
        choice_option(
            "--on-out-of-range",
            Literal["fail", "clamp"],
            "fail",
            "For a position that the mirror has deleted already.",
        ),
        click.option(
            "--allow-running-mirror",
            is_flag=True,
            help="Move groups although a mirror runs that copies them.",
        ),
    )


def _pipeline_options(command: Any) -> Any:
    """Add what names a pipeline, both clusters, and what is allowed."""
    for option in (
        broker_options,
        click.option("--source-is-down", is_flag=True, help="Do not ask the cluster that is left."),
        _policy_options(),
        mirror_options,
        to_options,
        groups_argument,
        checkpoint_argument,
    ):
        command = option(command)
    return command


@failover.command("plan", cls=StrictCommand)
@_pipeline_options
@verb_options(execute=False, how="'failover apply' with the same options does it")
def failover_plan(**options: Any) -> None:
    """
    Show how the query of the checkpoint at URI and its GROUP would go on on a mirror of their cluster.

    Nothing is changed. GROUP may be JSON as {topic: group}, with the names of the cluster that is left.
    """
    _move(back=False, **options)


@failover.command("apply", cls=StrictCommand)
@_pipeline_options
@verb_options(execute=True)
def failover_apply(**options: Any) -> None:
    """
    Let the query of the checkpoint at URI and its GROUP go on on a mirror of their cluster.

    The query must be stopped. What is overwritten is kept in an archive. An interrupted failover is finished
    by the same command.
    """
    _move(back=False, **options)


@failover.command("back", cls=StrictCommand)
@_pipeline_options
@click.option("--execute", is_flag=True, help="Carry out the plan.")
@verb_options(execute=False, how="give --execute to do it")
def failover_back(execute: bool, execution: Execution, **options: Any) -> None:
    """
    Let a query that has failed over go back, by the mirror in the other direction.

    The options are those of the failover: --bootstrap-server names the cluster to go back to,
    --to-bootstrap-server the one that is left now, and --syncs-topic the syncs of the mirror back. GROUP and
    --topic have the names of the cluster that is left.
    """
    _move(back=True, execution=replace(execution, dry_run=not execute, execute=execute), **options)


def _move(
    *,
    back: bool,
    checkpoint: SparkCheckpoint,
    groups: Groups,
    mirror: Mirror,
    broker: Broker,
    to: MirrorBroker,
    policy: Any,
    source_is_down: bool,
    execution: Execution,
) -> None:
    from airflow_kafka_offsets.kafka.worker import started_early
    from airflow_kafka_offsets.moves.failover import plan_failover

    click.get_current_context().with_resource(started_early())
    left, entered = (to.config(), broker.config) if back else (None, to.config)
    if back:
        mirror = replace(mirror.back(""), syncs_topic=mirror.syncs_topic)
    target = open_client(entered(), broker.timeout)
    source = None
    if not source_is_down:
        source = reachable(broker.config() if left is None else left, broker.timeout)
    plan = plan_failover(
        source,
        target,
        checkpoint,
        groups,
        mirror,
        policy=replace(policy, checkpoint=execution.policy),
    )
    execution.move(plan, target, checkpoint)


def reachable(config: dict[str, Any], timeout: float) -> OffsetsClient | None:
    """Return a client of the cluster that is left, ``None`` if it does not answer."""
    source = open_client(config, min(timeout, _SOURCE_TIMEOUT))
    try:
        source.cluster_id()
    except BrokerUnavailableError as error:
        click.echo(f"The cluster that is left does not answer: {error}", err=True)
        return None
    return source
