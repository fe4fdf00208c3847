"""The commands ``recover``: move many pipelines together, also while Airflow is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from airflow_kafka_offsets.cli.connections import BrokerOptions, broker_options, start_admin_process
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    move_options,
    print_result,
    quiet_period_option,
    reset_options,
)
from airflow_kafka_offsets.cli.mirror_connections import (
    failover_policy_options,
    source_is_down_option,
    to_options,
)
from airflow_kafka_offsets.cli.options import (
    EXISTING_FILE,
    CommandGroup,
    Option,
    StrictCommand,
    allow_stale_option,
    combine_options,
    new_cluster_option,
    output_option,
    refuse_unused,
)
from airflow_kafka_offsets.cli.recovery_file import (
    StateFile,
    checkpoint_of,
    connect,
    connect_both,
    read_names,
    refuse_removed,
)
from airflow_kafka_offsets.cli.saved_plans import max_age_option
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.fleet import Failure, Fleet
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import plural, shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.moves.fleet import Open


class _FileCommand(StrictCommand):
    """A command on a file of pipelines."""

    keys: ClassVar[Mapping[str, str]] = {
        **{name: name for name in ("group_id", "topics", "checkpoint_location", "checkpoint_conn_id")},
        **{name: f"mirror.{name}" for name in ("prefix", "without", "syncs_topic", "syncs_on")},
        "topic_map": "mirror.topics",
    }


file_argument = click.argument("file", type=EXISTING_FILE)


def _at_once_option(default: int, verb: str = "move") -> Option:
    return click.option(
        "--max-active",
        type=click.IntRange(1, 64),
        default=default,
        show_default=True,
        help=f"Pipelines to {verb} at the same time.",
    )


at_once_option = _at_once_option(8)


@click.group(cls=CommandGroup)
def recover() -> None:
    """
    Move many pipelines together: plan, apply in waves, show the status, restore.

    FILE lists the pipelines, in YAML or JSON. The plans and the progress are saved beside it, in
    FILE.recovery.json. The plans are resets to one target ('plan'), or failovers to a mirror
    ('plan-failover'); the other commands are the same for both.
    """


@recover.command("plan", cls=_FileCommand)
@file_argument
@reset_options
@at_once_option
@broker_options
def plan_command(
    file: Path, place: Place, execution: Execution, max_active: int, broker: BrokerOptions, **policies: Any
) -> None:
    """Plan to move each pipeline of FILE to the same target. Nothing is moved."""
    from airflow_kafka_offsets.moves.fleet import plan_resets

    every = _pipelines_to_plan(file, execution)
    with_checkpoint = all(names.checkpoint_location for names in every)
    if not place.traits.uses_on_no_commit(with_checkpoint=with_checkpoint):
        refuse_unused("where no commit is needed", "on_no_commit")
    state, open_one = StateFile(file), connect(broker, every)
    with state.locked():
        state.refuse_begun("plan others in a file of their own")
        how = {**policies, "policy": execution.policy, "at_once": max_active}
        fleet = Fleet.of(plan_resets(every, open_one, place, **how))
        state.write(fleet)
    _show_plan(fleet, state, execution)


@recover.command("plan-failover", cls=_FileCommand)
@file_argument
@to_options
@source_is_down_option
@failover_policy_options
@click.option(
    "--rest",
    is_flag=True,
    help="Plan only the pipelines that have not begun to move; the others keep their plans and progress.",
)
@move_options
@_at_once_option(4, "plan")
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
    Plan to move each pipeline of FILE to the mirror that FILE names for it. Nothing is moved.

    A pipeline that cannot be moved is named, and left out of the plan; exit 1 then. Options of the broker
    name the cluster to leave; for the commands that follow they name the mirror.
    """
    from airflow_kafka_offsets.moves.fleet import check_disjoint, plan_failovers, refused_by_all

    every = _pipelines_to_plan(file, execution)
    for names in every:
        if names.mirror is None:
            raise UsageError(f"{file}: {shorten(names.group_id)}: mirror is missing", parameter="mirror")
    start_admin_process()
    state = StateFile(file)
    with state.locked():
        begun, own_file = state.begun(), "plan the failover in a file of its own"
        # Pipelines that were reset, or moved to another cluster, must not be left out of the plan.
        if any(member.plan.left is None for member in begun):
            state.refuse_begun(own_file)
        elif not rest:
            state.refuse_begun("give --rest to plan the others")
        # By group, topics and checkpoint: a changed entry is planned, and refused, rather than left out.
        moved = [member.plan.names[:3] for member in begun]
        every = [names for names in every if names[:3] not in moved]
        if not every:
            raise UsageError(f"{file}: each pipeline has begun to move: nothing is left to plan")
        clients = connect_both(broker, to, every, min(max_active, len(every)), ask_source=not source_is_down)
        _, mirror = clients[0]
        if any(member.plan.log_ids.cluster not in ("", mirror.cluster_id()) for member in begun):
            state.refuse_begun(own_file)
        allowed = replace(policy, checkpoint=execution.policy)
        plans, failures = plan_failovers(every, checkpoint_of, clients, policy=allowed)
        if not plans:
            raise refused_by_all(failures)
        fleet = Fleet.of(plans, failures, begun)
        check_disjoint([member.plan for member in fleet.members])
        state.write(fleet)
    _show_plan(fleet, state, execution)
    _report(failures, "are not in the plan: correct them and plan again, with --rest once others have moved")


def _pipelines_to_plan(file: Path, execution: Execution) -> list[Names]:
    """Return the pipelines of a file; refuse options of 'recover apply'."""
    if execution.execute:
        raise UsageError("--execute is for 'recover apply': a plan moves nothing")
    refuse_unused("by a plan, which moves nothing", "quiet_period", "dry_run")
    return read_names(file)


def _show_plan(fleet: Fleet, state: StateFile, execution: Execution) -> None:
    saved = f"Plan {fleet.digest} is saved in {state.path}; nothing was moved"
    print_result(execution.output, fleet.as_json(), [fleet.markdown, "", saved], saved)


@recover.command("apply", cls=_FileCommand)
@file_argument
@click.option(
    "--digest", metavar="DIGEST", help="Refuse a plan with another digest. Give at least the first 8 digits."
)
@max_age_option
@at_once_option
@combine_options(
    "execution",
    Execution,
    quiet_period_option,
    click.option("--execute", is_flag=True, help="Do it. Default: show what would be done."),
    output_option,
)
@broker_options
def apply_command(
    file: Path,
    digest: str | None,
    max_age: float,
    max_active: int,
    execution: Execution,
    broker: BrokerOptions,
) -> None:
    """
    Move the pipelines as planned, in waves, or continue an interrupted run.

    If a reset fails, no other pipelines are started; if a failover fails, the others still move.
    """
    state = StateFile(file)
    with state.locked():
        fleet = state.require()
        if digest is not None:
            fleet.check_digest(digest)
        refuse_removed(file, fleet)
        if not execution.execute:
            execution.print_receipt(fleet.as_json(), "", [fleet.markdown, "", *_stages(fleet)])
            return
        if undone := [each for each in fleet.members if each.stage in ("restoring", "restored")]:
            raise UsageError(
                f"{state.path}: {len(undone)} of {len(fleet.members)} pipelines were restored, and would not "
                "be moved: finish 'recover restore', then plan again"
            )
        how = {"max_age": timedelta(seconds=max_age), "at_once": max_active}
        _carry_out("apply", fleet, state, broker, execution, **how)
    if refused := ", ".join(each.pipeline for each in fleet.refused):
        click.echo(f"not moved, because the plan refused them: {refused}", err=True)
        raise SystemExit(REFUSED)


@recover.command("restore", cls=_FileCommand)
@file_argument
@allow_stale_option
@new_cluster_option
@move_options
@at_once_option
@broker_options
def restore_command(
    file: Path, execution: Execution, max_active: int, broker: BrokerOptions, **allowed: bool
) -> None:
    """Undo the move of every pipeline that was moved."""
    state = StateFile(file)
    with state.locked():
        fleet = state.require()
        if all(member.stage == "planned" for member in fleet.members):
            raise UsageError(f"{state.path}: no pipeline has begun to move: there is nothing to restore")
        if not execution.execute:
            names = [member.name for member in fleet.begun]
            lines = [f"group {name} would be restored" for name in names]
            execution.print_receipt({"pipelines": names}, "", lines)
            return
        policy = None if execution.policy == CheckpointPolicy() else execution.policy
        how = {"policy": policy, "at_once": max_active, **allowed}
        _carry_out("restore", fleet, state, broker, execution, **how)


@recover.command("status", cls=_FileCommand)
@file_argument
@broker_options
@output_option
def status_command(file: Path, broker: BrokerOptions, output: str) -> None:
    """
    Show the progress of each pipeline, and where its groups and checkpoint are now.

    Exit 1 if that is unknown for a pipeline, such as on another cluster than that of the plan.
    """
    from airflow_kafka_offsets.readings.pipeline_state import pipeline_state

    fleet = StateFile(file).require()
    open_one = _connect(fleet, broker)
    header = ["PIPELINE", "STAGE", "NOW", "LAG", "ERROR"]
    rows: list[tuple[str, str, str, str, str | None]] = []
    unknown: list[Failure] = []
    for member in fleet.members:
        now, lag = "unknown", "-"
        try:
            now, behind = pipeline_state(*open_one(member.plan.target_names), member.plan)
            lag = f"{behind:,}"
        except KafkaOffsetsError as error:
            unknown.append(Failure(member.name, error))
        rows.append((member.name, member.stage, now, lag, member.error))
    rows += [(name, "refused", "-", "-", why) for name, why in fleet.refused]
    keys = [*map(str.lower, header)]
    clusters = sorted({member.plan.log_ids.cluster or "(unknown)" for member in fleet.members})
    value = {
        "digest": fleet.digest,
        "clusters": clusters,
        "pipelines": [dict(zip(keys, row, strict=True)) for row in rows],
    }
    shown = [[*row, shorten(error or "-")] for *row, error in rows]
    title = f"Plan {fleet.digest} on cluster {', '.join(clusters)}"
    print_result(output, value, [title, *align_rows([header, *shown]), "", *_stages(fleet)])
    _report(unknown, "could not be compared")


def _carry_out(
    verb: str, fleet: Fleet, state: StateFile, broker: BrokerOptions, execution: Execution, **how: Any
) -> None:
    """Apply or restore a recovery, and print the result; exit 1 if a pipeline has failed."""
    from airflow_kafka_offsets.moves.fleet import FleetMoves

    moves = FleetMoves(fleet, state.write, _connect(fleet, broker), execution.metadata)
    saved, failures = f"the progress is saved in {state.path}", None
    with suppress(KeyboardInterrupt):
        failures = getattr(moves, verb)(quiet_period=execution.quiet_period, **how)
    remedy = f"run 'recover {verb}' again to continue"
    if verb == "apply" and moves.fleet.begun:
        remedy += ", or 'recover restore' to undo all moves"
    if failures is None:
        click.echo(f"Stopped: {saved}; {remedy}", err=True)
        raise click.Abort
    execution.print_receipt(moves.fleet.as_json(), saved, _stages(moves.fleet))
    _report(failures, f"failed; {remedy}")


def _connect(fleet: Fleet, broker: BrokerOptions) -> Open:
    return connect(broker, [member.plan.target_names for member in fleet.members])


def _stages(fleet: Fleet) -> list[str]:
    """Return the number of pipelines in each stage, as text."""
    stages = [*(member.stage for member in fleet.members), *("refused" for _ in fleet.refused)]
    numbers = ", ".join(f"{number} {stage}" for stage, number in Counter(stages).items())
    return [f"{plural(len(stages), 'pipeline')}: {numbers}"]


def _report(failures: Sequence[Failure], what: str) -> None:
    """Print the errors of pipelines; exit 1 if there are any."""
    for failure in failures:
        click.echo(f"Error: group {failure}", err=True)
    if failures:
        click.echo(f"{len(failures)} {what}", err=True)
        raise SystemExit(REFUSED)
