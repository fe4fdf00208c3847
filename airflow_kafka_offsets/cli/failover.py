"""Commands that move a pipeline to a mirror of its cluster: plan, apply, back and check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import click

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.cli.connections import (
    BrokerOptions,
    broker_options,
    checkpoint_argument,
    pipeline_or_file_options,
)
from airflow_kafka_offsets.cli.drift import CheckCommand
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    checkpoint_move_options,
    execute_option,
    print_result,
)
from airflow_kafka_offsets.cli.mirror_connections import (
    failover_policy_options,
    mirror_options,
    reachable,
    source_is_down_option,
    to_options,
)
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    add_options,
    groups_argument,
    output_option,
    refuse_unused,
)
from airflow_kafka_offsets.cli.saved_plans import (
    apply_saved_plan,
    max_age_option,
    plan_option,
    refuse_with_plan,
    save_plan_option,
    save_to_file,
)
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import CHECK_VERSION


@click.group(cls=CommandGroup)
def failover() -> None:
    """Move a pipeline to a mirror of its cluster. For many pipelines: 'recover'."""


class MirrorCheckCommand(CheckCommand):
    """The command ``failover check``."""

    unchecked: ClassVar[Mapping[str, Any]] = {"version": CHECK_VERSION, "now": None, "alone": None}


_cluster_options = add_options(
    to_options, mirror_options, source_is_down_option, broker_options, failover_policy_options
)
_pipeline_options = add_options(checkpoint_argument, groups_argument, _cluster_options)


@failover.command("plan")
@_pipeline_options
@save_plan_option
@checkpoint_move_options(output_option, execute=False, how="'failover apply' with the same options does it")
def failover_plan(broker: BrokerOptions, to: BrokerOptions, **options: Any) -> None:
    """
    Show how a pipeline would continue on a mirror. Changes nothing.

    The pipeline is the checkpoint at URI and its GROUP. GROUP may be JSON as {topic: group}, with the topics
    of the old cluster. --save-plan writes the plan to a file, for 'failover apply --plan'. 'recover
    plan-failover' plans many pipelines.
    """
    _move(broker, to, **options)


@failover.command("apply")
@pipeline_or_file_options(plan_option, "--plan")
@_cluster_options
@max_age_option
@checkpoint_move_options(output_option, execute=True)
def failover_apply(
    named: tuple[SparkCheckpoint, GroupSelection] | str,
    max_age: float,
    broker: BrokerOptions,
    to: BrokerOptions,
    **options: Any,
) -> None:
    """
    Move the checkpoint at URI and its GROUP to a mirror.

    Stop the query first. An archive keeps the overwritten files and offsets. The same command finishes an
    interrupted failover. With --plan the plan in a file names all but the mirror's cluster.
    """
    if not isinstance(named, str):
        refuse_unused("without --plan", "max_age")
        checkpoint, groups = named
        _move(broker, to, checkpoint=checkpoint, groups=groups, **options)
        return
    refuse_with_plan("to_bootstrap_server", "to_command_config", "to_kafka_config_id")
    from airflow_kafka_offsets.moves.saved import plan_saved_failover

    apply_saved_plan(options["execution"], named, to.open_client(), max_age, plan_saved_failover)


@failover.command("back")
@_pipeline_options
@checkpoint_move_options(execute_option, output_option)
def failover_back(broker: BrokerOptions, to: BrokerOptions, mirror: Mirror, **options: Any) -> None:
    """
    Move a query back after a failover.

    It moves through the mirror in the other direction. The options are those of the failover:
    --bootstrap-server names the cluster to go back to, --to-bootstrap-server the cluster to leave, and
    --syncs-topic the syncs of the mirror back. GROUP and --topic have the names of the cluster to leave.
    """
    _move(to, broker, mirror=mirror.back(), **options)


@failover.command("check", cls=MirrorCheckCommand)
@click.option(
    "--max-again", type=click.IntRange(0), help="Most records that may be read again if the source is gone."
)
@click.option("--max-behind", type=click.IntRange(0), help="Most records by which the mirror may be behind.")
@checkpoint_argument
@groups_argument
@to_options
@mirror_options
@broker_options
@output_option
def failover_check(
    checkpoint: SparkCheckpoint,
    groups: GroupSelection,
    mirror: Mirror,
    broker: BrokerOptions,
    to: BrokerOptions,
    max_again: int | None,
    max_behind: int | None,
    output: str,
) -> None:
    """
    Check how the checkpoint at URI and its GROUP could fail over now.

    Changes nothing. Exit 1 if a position is unknown or a threshold is exceeded, 3 if the check was not
    possible.
    """
    from airflow_kafka_offsets.readings.mirror_check import check_mirror

    source, target = broker.open_client(), to.open_client()
    found = check_mirror(source, target, checkpoint, groups, mirror)
    print_result(output, found.as_json(), found.lines())
    failures = found.failures(max_again, max_behind)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        raise SystemExit(REFUSED)


def _move(
    left: BrokerOptions,
    entered: BrokerOptions,
    *,
    checkpoint: SparkCheckpoint,
    groups: GroupSelection,
    mirror: Mirror,
    policy: FailoverPolicy,
    source_is_down: bool,
    execution: Execution,
    save_plan: Path | None = None,
) -> None:
    """Plan to move a pipeline from one cluster to the other; save the plan, show it or apply it."""
    from airflow_kafka_offsets.moves.failover import plan_failover

    target = entered.open_client()
    source = None if source_is_down else reachable(left.client_config(), left.timeout)
    # If the source is down, it is not used, and its address was not checked.
    for used in (entered,) if source_is_down else (left, entered):
        used.show_variables()
    allowed = replace(policy, checkpoint=execution.policy)
    plan = plan_failover(source, target, checkpoint, groups, mirror, policy=allowed)
    if save_plan is None:
        execution.finish_pipeline_plan(plan, target, checkpoint)
        return
    connection = {"kafka_config_id": entered.kafka_config_id} if entered.kafka_config_id else {}
    save_to_file(
        execution,
        plan,
        target,
        checkpoint,
        save_plan,
        group_id=groups.group_id,
        mirror={**mirror.as_json(), **connection},
        allow_running_mirror=policy.allow_running_mirror,
    )
