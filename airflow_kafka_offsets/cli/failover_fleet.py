"""Fails over the pipelines of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import (
    BrokerOptions,
    connection_config,
    open_checkpoint,
    open_client,
    start_admin_process,
)
from airflow_kafka_offsets.cli.execution import REFUSED, Execution, print_result
from airflow_kafka_offsets.cli.mirror_connections import MirrorBroker, reachable
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.text import shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.pipeline import KafkaPipeline

Config = Mapping[str, Any]


def move_fleet(
    file: Path,
    at_once: int,
    *,
    broker: BrokerOptions,
    to: MirrorBroker,
    policy: FailoverPolicy,
    source_is_down: bool,
    execution: Execution,
) -> None:
    """
    Fail over the pipelines of a file, or show the plans; exit 1 if a pipeline is refused or fails.

    The command line names the clusters, or else the file's connections do.

    :param at_once: number of pipelines that move at the same time, each with its own clients.
    """
    from airflow_kafka_offsets.moves.failover_fleet import (
        Clients,
        FleetMember,
        Outcome,
        fail_over_fleet,
        outcome_counts,
    )

    start_admin_process()
    pipelines = _load(file)
    left, entered = _configs(pipelines, broker, to)
    members = [
        FleetMember(
            _name(each),
            open_checkpoint(str(each.checkpoint_location), each.checkpoint_conn_id, option="--pipelines"),
            GroupSelection.parse(each.group_id, each.topics),
            Mirror.parse(each.mirror),
        )
        for each in pipelines
    ]
    answers = not source_is_down and reachable(left(), broker.timeout) is not None
    workers: list[Clients] = [
        (
            open_client(left(), broker.timeout, limited=False) if answers else None,
            open_client(entered(), broker.timeout, limited=False),
        )
        for _ in range(min(at_once, len(members)))
    ]
    outcomes: list[Outcome] = []
    for outcome in fail_over_fleet(
        members,
        workers,
        policy=replace(policy, checkpoint=execution.policy or policy.checkpoint),
        metadata=execution.metadata,
        quiet_period=execution.quiet_period,
        execute=execution.execute,
    ):
        outcomes.append(outcome)
        execution.print_lines(str(outcome))
    summary = outcome_counts(outcomes)
    result = {"version": 1, "summary": summary, "pipelines": [each.as_json() for each in outcomes]}
    print_result(execution.output, result, [summary])
    if any(each.state in ("refused", "failed") for each in outcomes):
        raise SystemExit(REFUSED)


def _name(pipeline: KafkaPipeline) -> str:
    named = pipeline.group_id
    return named if isinstance(named, str) else ", ".join(sorted({*named.values()}))


def _load(file: Path) -> list[KafkaPipeline]:
    from airflow_kafka_offsets.pipeline import KafkaPipeline

    try:
        pipelines = KafkaPipeline.load(file)
    except KafkaOffsetsError as error:
        raise click.BadParameter(str(error)) from None
    for number, each in enumerate(pipelines, 1):
        if not each.checkpoint_location or each.mirror is None:
            missing = "mirror" if each.checkpoint_location else "checkpoint_location"
            raise click.BadParameter(f"{file}, entry {number} ({shorten(_name(each))}): {missing} is missing")
    return pipelines


def _configs(
    pipelines: list[KafkaPipeline], broker: BrokerOptions, to: MirrorBroker
) -> tuple[Callable[[], Config], Callable[[], Config]]:
    """Return functions for the configurations of both clusters; the file must have a single pair of them."""
    named = {
        "kafka_config_id": {each.kafka_config_id for each in pipelines},
        "mirror.kafka_config_id": {Mirror.parse(each.mirror).kafka_config_id for each in pipelines},
    }
    for key, ids in named.items():
        if len(ids) > 1:
            raise UsageError(
                f"the file of --pipelines has several {key} ({shorten(', '.join(sorted(ids)))}): write a "
                "separate file for each pair of clusters"
            )
    ((left,), (entered,)) = named.values()
    given = to.to_bootstrap_server or to.to_command_config or to.to_kafka_config_id
    return (
        broker.client_config if broker.option_names else lambda: connection_config(left, "--pipelines"),
        to.config if given else lambda: connection_config(entered, "--pipelines"),
    )
