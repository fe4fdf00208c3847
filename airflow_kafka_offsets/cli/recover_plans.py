"""The commands ``recover plan`` and ``recover plan-failover``: plan the moves of many pipelines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.cli.connections import BrokerOptions, broker_options
from airflow_kafka_offsets.cli.execution import Execution, plan_options, print_result, target_options
from airflow_kafka_offsets.cli.mirror_connections import (
    failover_policy_options,
    source_is_down_option,
    to_options,
)
from airflow_kafka_offsets.cli.options import refuse_unused
from airflow_kafka_offsets.cli.recovery_file import (
    FileCommand,
    StateFile,
    at_once_option,
    checkpoint_of,
    connect,
    connect_both,
    file_argument,
    read_names,
    report_failures,
)
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.fleet import Fleet, Member
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.text import shorten

_OWN_FILE = "plan the failover in a file of its own"


@click.command("plan", cls=FileCommand)
@file_argument
@target_options
@plan_options
@at_once_option(8, "plan")
@broker_options
def plan_command(
    file: Path, place: Place, execution: Execution, max_active: int, broker: BrokerOptions, **policies: Any
) -> None:
    """Plan to move each pipeline of FILE to the same target. Nothing is moved."""
    from airflow_kafka_offsets.moves.fleet import plan_fleet_resets

    every = read_names(file)
    with_checkpoint = all(names.checkpoint_location for names in every)
    if not place.traits.uses_on_no_commit(with_checkpoint=with_checkpoint):
        refuse_unused("where no commit is needed", "on_no_commit")
    state, open_one = StateFile(file), connect(broker, every)
    with state.locked():
        state.refuse_begun("plan others in a file of their own")
        how = {**policies, "policy": execution.policy, "at_once": max_active}
        fleet = Fleet.of(plan_fleet_resets(every, open_one, place, **how))
        state.write(fleet)
    _show_plan(fleet, state, execution)


@click.command("plan-failover", cls=FileCommand)
@file_argument
@to_options
@source_is_down_option
@failover_policy_options
@click.option(
    "--rest",
    is_flag=True,
    help="Plan only the pipelines that have not begun to move; the others keep their plans and progress.",
)
@plan_options
@at_once_option(4, "plan")
@broker_options
def plan_failover_command(
    file: Path,
    to: BrokerOptions,
    source_is_down: bool,
    policy: FailoverPolicy,
    rest: bool,
    execution: Execution,
    max_active: int,
    broker: BrokerOptions,
) -> None:
    """
    Plan to move each pipeline of FILE to its mirror. Nothing is moved.

    A pipeline that cannot be moved is named, and left out of the plan; exit 1 then. Options of the broker
    name the cluster to leave; for the commands that follow they name the mirror.
    """
    from airflow_kafka_offsets.moves.fleet import check_disjoint, failures_error, plan_fleet_failovers

    every = read_names(file)
    for names in every:
        if names.mirror is None:
            raise UsageError(f"{file}: {shorten(names.group_id)}: mirror is missing", parameter="mirror")
    state = StateFile(file)
    with state.locked():
        begun = _begun_failovers(state, rest=rest)
        # By group, topics and checkpoint: a changed entry is planned, and refused, rather than left out.
        moved = [member.plan.names[:3] for member in begun]
        every = [names for names in every if names[:3] not in moved]
        if not every:
            raise UsageError(f"{file}: each pipeline has begun to move: nothing is left to plan")
        clients = connect_both(broker, to, every, min(max_active, len(every)), ask_source=not source_is_down)
        _, mirror = clients[0]
        if any(member.plan.log_ids.cluster not in ("", mirror.cluster_id()) for member in begun):
            state.refuse_begun(_OWN_FILE)
        allowed = replace(policy, checkpoint=execution.policy)
        plans, failures = plan_fleet_failovers(every, checkpoint_of, clients, policy=allowed)
        if not plans:
            raise failures_error(failures)
        fleet = Fleet.of(plans, failures, begun)
        check_disjoint([member.plan for member in fleet.members])
        state.write(fleet)
    _show_plan(fleet, state, execution)
    report_failures(
        failures, "are not in the plan: correct them and plan again, with --rest once others have moved"
    )


def _begun_failovers(state: StateFile, *, rest: bool) -> list[Member]:
    """Return the pipelines that have begun to fail over, which stay in the plan; refuse any other move."""
    begun = state.begun()
    # Pipelines that were reset must not be left out of the plan.
    if any(member.plan.left_logs is None for member in begun):
        state.refuse_begun(_OWN_FILE)
    elif not rest:
        state.refuse_begun("give --rest to plan the others")
    return begun


def _show_plan(fleet: Fleet, state: StateFile, execution: Execution) -> None:
    saved = f"Plan {fleet.digest} is saved in {state.path}; nothing was moved"
    print_result(execution.output, fleet.as_json(), [fleet.markdown, "", saved], saved)
