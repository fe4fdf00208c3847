"""Commands that move pipelines to a mirror of their cluster: plan, apply, back and check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from airflow_kafka_offsets.cli.connections import (
    BrokerOptions,
    broker_options,
    checkpoint_argument,
    checkpoint_conn_id_option,
    open_checkpoint,
    open_client,
    start_admin_process,
)
from airflow_kafka_offsets.cli.drift import CheckCommand, naming_keys
from airflow_kafka_offsets.cli.execution import REFUSED, Execution, print_result, verb_options
from airflow_kafka_offsets.cli.mirror_connections import MirrorBroker, mirror_options, reachable, to_options
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    StrictCommand,
    add_options,
    choice_option,
    combine_options,
    groups_argument,
    output_option,
    refuse_unused,
    topics_option,
)
from airflow_kafka_offsets.cli.saved_plans import (
    apply_saved_failover,
    max_age_option,
    plan_option,
    save_plan_option,
)
from airflow_kafka_offsets.cli.saved_plans import save as save_to_file
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.failover_plan import DeletedPolicy, FailoverPolicy, UnknownPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import CHECK_VERSION

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

__all__ = ["failover"]


@click.group(cls=CommandGroup)
def failover() -> None:
    """Move pipelines to a mirror of their Kafka cluster."""


_policy_options = combine_options(
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


class MirrorCheckCommand(CheckCommand):
    """The command ``failover check``."""

    unchecked: ClassVar[Mapping[str, Any]] = {"version": CHECK_VERSION, "now": None, "alone": None}


_cluster_options = (
    to_options,
    mirror_options,
    click.option("--source-is-down", is_flag=True, help="Do not ask the old cluster."),
    broker_options,
)
_fleet_options = (
    click.option(
        "--pipelines",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="YAML or JSON file of pipelines with their mirrors, instead of URI and GROUP.",
    ),
    click.option(
        "--at-once",
        type=click.IntRange(1, 32),
        default=4,
        show_default=True,
        help="Pipelines that move at once.",
    ),
)


_NOT_WITH_PLAN = (
    *("pipelines", "at_once", "topics", "checkpoint_conn_id", "source_is_down"),
    *("bootstrap_server", "command_config", "kafka_config_id"),
    *("prefix", "topic_map", "syncs_topic", "syncs_on"),
    *("on_unknown", "on_out_of_range", "allow_running_mirror"),
    *("on_pending_batch", "sink", "idempotent_sink", "sink_location", "allow_stateful"),
)
"""Parameters of ``failover apply`` that a saved plan has decided."""


_pipeline_options = add_options(checkpoint_argument, groups_argument, *_cluster_options, _policy_options)
_pipelines_options = add_options(
    click.argument("uri", required=False),
    checkpoint_conn_id_option,
    click.argument("group_id", metavar="[GROUP]", required=False),
    topics_option,
    *_fleet_options,
    *_cluster_options,
    _policy_options,
)


@failover.command("plan", cls=StrictCommand)
@_pipelines_options
@save_plan_option
@verb_options(execute=False, how="'failover apply' with the same options does it")
def failover_plan(**options: Any) -> None:
    """
    Show how the query of the checkpoint at URI and its GROUP would continue on a mirror of their cluster.

    Changes nothing. GROUP may be JSON as {topic: group}, with the topics of the old cluster. With --pipelines
    the command plans all pipelines of a file. --save-plan writes the plan to a file, for 'failover apply
    --plan'.
    """
    _move_one_or_many(**options)


@failover.command("apply", cls=StrictCommand)
@_pipelines_options
@plan_option
@max_age_option
@verb_options(execute=True)
def failover_apply(plan_file: str | None, max_age: float, **options: Any) -> None:
    """
    Move the checkpoint at URI and its GROUP to a mirror of their cluster.

    Stop the query first. An archive keeps the overwritten files and offsets. The same command finishes an
    interrupted failover. With --pipelines all pipelines of a file move; if one is refused, the others move.
    With --plan the plan in a file names all but the mirror's cluster.
    """
    if plan_file is None:
        refuse_unused("without --plan", "max_age")
        _move_one_or_many(**options)
        return
    broker: BrokerOptions = options["broker"]
    if options["uri"] is not None:
        raise UsageError("--plan names the checkpoint and its groups: leave URI and GROUP out")
    refuse_unused("with --plan", *_NOT_WITH_PLAN)
    start_admin_process()
    target = open_client(options["to"].config(), broker.timeout)
    apply_saved_failover(options["execution"], plan_file, target, max_age)


@failover.command("back", cls=StrictCommand)
@_pipeline_options
@click.option("--execute", is_flag=True, help="Apply the plan.")
@verb_options(execute=False, how="give --execute to do it")
def failover_back(execute: bool, execution: Execution, **options: Any) -> None:
    """
    Move a query back after a failover, through the mirror in the other direction.

    The options are those of the failover: --bootstrap-server names the cluster to go back to,
    --to-bootstrap-server the cluster to leave, and --syncs-topic the syncs of the mirror back. GROUP and
    --topic have the names of the cluster to leave.
    """
    _move(back=True, execution=replace(execution, dry_run=not execute, execute=execute), **options)


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
    to: MirrorBroker,
    max_again: int | None,
    max_behind: int | None,
    output: str,
) -> None:
    """
    Check how the query of the checkpoint at URI and its GROUP could fail over now. Changes nothing.

    Exit 1 if a position is unknown or a threshold is exceeded, 3 if the check was not possible.
    """
    from airflow_kafka_offsets.readings.mirror_check import check_mirror

    start_admin_process()
    source = open_client(broker.client_config(), broker.timeout)
    target = open_client(to.config(), broker.timeout)
    found = check_mirror(source, target, checkpoint, groups, mirror)
    print_result(output, found.as_json(), found.lines())
    failures = found.failures(max_again, max_behind)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        raise SystemExit(REFUSED)


def _move_one_or_many(
    *,
    uri: str | None,
    group_id: str | None,
    topics: Sequence[str] | None,
    checkpoint_conn_id: str | None,
    pipelines: Path | None,
    at_once: int,
    save_plan: Path | None = None,
    **options: Any,
) -> None:
    if pipelines is not None:
        refuse_unused("with --pipelines", "save_plan")
        from airflow_kafka_offsets.cli.failover_fleet import move_fleet

        if uri is not None:
            raise UsageError("--pipelines replaces URI and GROUP: omit these")
        refuse_unused(
            "with --pipelines, whose file names them",
            *("topics", "checkpoint_conn_id", "prefix", "topic_map", "syncs_topic", "syncs_on"),
        )
        del options["mirror"]
        with naming_keys(click.get_current_context(), "mirror", "syncs_topic", "syncs_on"):
            move_fleet(pipelines, at_once, **options)
        return
    if uri is None or group_id is None:
        raise UsageError("give the URI of a checkpoint and its GROUP, or --pipelines FILE")
    refuse_unused("without --pipelines", "at_once")
    checkpoint = open_checkpoint(uri, checkpoint_conn_id)
    groups = GroupSelection.parse(group_id, topics)
    _move(back=False, checkpoint=checkpoint, groups=groups, save_plan=save_plan, **options)


def _move(
    *,
    back: bool,
    checkpoint: SparkCheckpoint,
    groups: GroupSelection,
    mirror: Mirror,
    broker: BrokerOptions,
    to: MirrorBroker,
    policy: FailoverPolicy,
    source_is_down: bool,
    execution: Execution,
    save_plan: Path | None = None,
) -> None:
    from airflow_kafka_offsets.moves.failover import plan_failover

    start_admin_process()
    left, entered = (to.config, broker.client_config) if back else (broker.client_config, to.config)
    if back:
        mirror = mirror.back()
    target = open_client(entered(), broker.timeout)
    source = None if source_is_down else reachable(left(), broker.timeout)
    if broker.option_names:
        broker.show_variables(broker.client_config())
    allowed = replace(policy, checkpoint=execution.policy or policy.checkpoint)
    plan = plan_failover(source, target, checkpoint, groups, mirror, policy=allowed)
    if save_plan is None:
        execution.finish_pipeline_plan(plan, target, checkpoint)
        return
    named = {"kafka_config_id": to.to_kafka_config_id} if to.to_kafka_config_id else {}
    save_to_file(
        execution,
        plan,
        target,
        checkpoint,
        save_plan,
        group_id=groups.group_id,
        topics=click.get_current_context().params["topics"],
        mirror={**mirror.as_json(), **named},
        allow_running_mirror=policy.allow_running_mirror,
    )
