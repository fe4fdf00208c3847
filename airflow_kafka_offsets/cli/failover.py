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
    open_checkpoint,
    open_client,
    start_admin_process,
)
from airflow_kafka_offsets.cli.drift import CheckCommand, Named, named_options, naming_keys
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    checkpoint_move_options,
    execute_option,
    print_result,
)
from airflow_kafka_offsets.cli.mirror_connections import mirror_options, reachable, to_options
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    add_options,
    choice_option,
    combine_options,
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
)
from airflow_kafka_offsets.cli.saved_plans import save as save_to_file
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.failover_plan import DeletedPolicy, FailoverPolicy, UnknownPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import CHECK_VERSION
from airflow_kafka_offsets.model.text import shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.pipeline import KafkaPipeline

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
_pipeline_options = add_options(checkpoint_argument, groups_argument, *_cluster_options, _policy_options)
_pipelines_options = add_options(
    named_options(
        "YAML or JSON file of pipelines with their mirrors, instead of URI and GROUP.",
        checkpoint_location="",
        mirror="",
    ),
    click.option(
        "--at-once",
        type=click.IntRange(1, 32),
        default=4,
        show_default=True,
        help="Pipelines that move at once.",
    ),
    *_cluster_options,
    _policy_options,
)


@failover.command("plan")
@_pipelines_options
@save_plan_option
@checkpoint_move_options(output_option, execute=False, how="'failover apply' with the same options does it")
def failover_plan(**options: Any) -> None:
    """
    Show how the query of the checkpoint at URI and its GROUP would continue on a mirror of their cluster.

    Changes nothing. GROUP may be JSON as {topic: group}, with the topics of the old cluster. With --pipelines
    the command plans all pipelines of a file. --save-plan writes the plan to a file, for 'failover apply
    --plan'.
    """
    _move_one_or_many(**options)


@failover.command("apply")
@_pipelines_options
@plan_option
@max_age_option
@checkpoint_move_options(output_option, execute=True)
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
    if click.get_current_context().params["uri"] is not None:
        raise UsageError("--plan names the checkpoint and its groups: leave URI and GROUP out")
    refuse_with_plan("to_bootstrap_server", "to_command_config", "to_kafka_config_id")
    from airflow_kafka_offsets.moves.saved_failover import plan_saved_failover

    start_admin_process()
    mirror = options["to"].open_client()
    apply_saved_plan(options["execution"], plan_file, mirror, max_age, plan_saved_failover)


@failover.command("back")
@_pipeline_options
@checkpoint_move_options(execute_option, output_option, how="give --execute to do it")
def failover_back(**options: Any) -> None:
    """
    Move a query back after a failover, through the mirror in the other direction.

    The options are those of the failover: --bootstrap-server names the cluster to go back to,
    --to-bootstrap-server the cluster to leave, and --syncs-topic the syncs of the mirror back. GROUP and
    --topic have the names of the cluster to leave.
    """
    _move(back=True, **options)


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
    Check how the query of the checkpoint at URI and its GROUP could fail over now. Changes nothing.

    Exit 1 if a position is unknown or a threshold is exceeded, 3 if the check was not possible.
    """
    from airflow_kafka_offsets.readings.mirror_check import check_mirror

    start_admin_process()
    source, target = broker.open_client(), to.open_client()
    found = check_mirror(source, target, checkpoint, groups, mirror)
    print_result(output, found.as_json(), found.lines())
    failures = found.failures(max_again, max_behind)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        raise SystemExit(REFUSED)


def _move_one_or_many(*, named: Named, at_once: int, save_plan: Path | None = None, **options: Any) -> None:
    if isinstance(named, list):
        refuse_unused("with --pipelines", "save_plan")
        mirror_names = ("prefix", "topic_map", "syncs_topic", "syncs_on")
        refuse_unused("with --pipelines, whose file names them", *mirror_names)
        del options["mirror"]
        with naming_keys(click.get_current_context()):
            _move_fleet(named, at_once, **options)
        return
    refuse_unused("without --pipelines", "at_once")
    checkpoint, groups = named
    _move(back=False, checkpoint=checkpoint, groups=groups, save_plan=save_plan, **options)


def _move(
    *,
    back: bool,
    checkpoint: SparkCheckpoint,
    groups: GroupSelection,
    mirror: Mirror,
    broker: BrokerOptions,
    to: BrokerOptions,
    policy: FailoverPolicy,
    source_is_down: bool,
    execution: Execution,
    save_plan: Path | None = None,
) -> None:
    from airflow_kafka_offsets.moves.failover import plan_failover

    start_admin_process()
    left, entered = (to, broker) if back else (broker, to)
    if back:
        mirror = mirror.back()
    target = entered.open_client()
    source = None if source_is_down else reachable(left.client_config(), left.timeout)
    if back or not source_is_down:  # otherwise the cluster is not used, and its address was not checked
        broker.show_variables()
    allowed = replace(policy, checkpoint=execution.policy)
    plan = plan_failover(source, target, checkpoint, groups, mirror, policy=allowed)
    if save_plan is None:
        execution.finish_pipeline_plan(plan, target, checkpoint)
        return
    named = {"kafka_config_id": to.kafka_config_id} if to.kafka_config_id else {}
    save_to_file(
        execution,
        plan,
        target,
        checkpoint,
        save_plan,
        group_id=groups.group_id,
        mirror={**mirror.as_json(), **named},
        allow_running_mirror=policy.allow_running_mirror,
    )


def _move_fleet(
    pipelines: Sequence[KafkaPipeline],
    at_once: int,
    *,
    broker: BrokerOptions,
    to: BrokerOptions,
    policy: FailoverPolicy,
    source_is_down: bool,
    execution: Execution,
) -> None:
    """
    Fail over the pipelines of a file, or show the plans; exit 1 if a pipeline is refused or fails.

    The command line names the clusters, or else the file's connections do.

    :param at_once: number of pipelines that move at the same time, each with its own clients.
    """
    from airflow_kafka_offsets.moves.failover_fleet import FleetMember, fail_over_fleet, outcome_counts

    start_admin_process()
    mirrors = [Mirror.parse(each.mirror) for each in pipelines]
    connections = {
        "kafka_config_id": {each.kafka_config_id for each in pipelines},
        "mirror.kafka_config_id": {mirror.kafka_config_id for mirror in mirrors},
    }
    for key, ids in connections.items():
        if len(ids) > 1:
            raise UsageError(
                f"the file of --pipelines has several {key} ({shorten(', '.join(sorted(ids)))}): write a "
                "separate file for each pair of clusters"
            )
    ((left_id,), (entered_id,)) = connections.values()
    members = [
        FleetMember(
            open_checkpoint(str(each.checkpoint_location), each.checkpoint_conn_id, option="--pipelines"),
            GroupSelection.parse(each.group_id, each.topics),
            mirror,
        )
        for each, mirror in zip(pipelines, mirrors, strict=True)
    ]
    left = None if source_is_down else broker.client_config_or(left_id, "--pipelines")
    if left is not None:
        if reachable(left, broker.timeout) is None:
            left = None
        broker.show_variables()
    entered = to.client_config_or(entered_id, "--pipelines")

    def open_clients() -> tuple[OffsetsClient | None, OffsetsClient]:
        source = None if left is None else open_client(left, broker.timeout, limited=False)
        return source, open_client(entered, broker.timeout, limited=False)

    outcomes = []
    for outcome in fail_over_fleet(
        members,
        [open_clients() for _ in range(min(at_once, len(members)))],
        policy=replace(policy, checkpoint=execution.policy),
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
