"""The commands ``recover``: move many pipelines together, also while Airflow is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import BrokerOptions, broker_options
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    move_options,
    print_result,
    quiet_period_option,
)
from airflow_kafka_offsets.cli.options import (
    EXISTING_FILE,
    CommandGroup,
    StrictCommand,
    allow_stale_option,
    combine_options,
    new_cluster_option,
    no_commit_option,
    out_of_range_option,
    output_option,
    place_options,
    refuse_unused,
)
from airflow_kafka_offsets.cli.recovery_file import StateFile, connect
from airflow_kafka_offsets.cli.saved_plans import max_age_option
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.fleet import Fleet, Member
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import plural, shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.moves.fleet import Failure, FleetMoves, Open

__all__ = ["recover"]


class _FileCommand(StrictCommand):
    """A command on a file of pipelines."""

    keys = ("group_id", "topics", "checkpoint_location", "checkpoint_conn_id")


file_argument = click.argument("file", type=EXISTING_FILE)
at_once_option = click.option(
    "--max-active",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Pipelines to move at the same time.",
)


@click.group(cls=CommandGroup)
def recover() -> None:
    """
    Move many pipelines together: plan, apply in waves, show the status, restore.

    FILE lists the pipelines, in YAML or JSON. The plans and the progress are saved beside it, in
    FILE.recovery.json.
    """


@recover.command("plan", cls=_FileCommand)
@file_argument
@place_options
@out_of_range_option
@no_commit_option
@new_cluster_option
@move_options
@at_once_option
@broker_options
def plan_command(
    file: Path,
    place: Place,
    execution: Execution,
    max_active: int,
    broker: BrokerOptions,
    **policies: Any,
) -> None:
    """Plan to move each pipeline of FILE to the same target. Nothing is moved."""
    from airflow_kafka_offsets.moves.fleet import plan_all
    from airflow_kafka_offsets.pipeline import KafkaPipeline

    if execution.execute:
        raise UsageError("--execute is for 'recover apply': a plan moves nothing")
    refuse_unused("by a plan: it is an option of 'recover apply'", "quiet_period")
    every = [Names.of(pipeline) for pipeline in KafkaPipeline.load(file)]
    with_checkpoint = all(names.checkpoint_location for names in every)
    if not place.traits.uses_on_no_commit(with_checkpoint=with_checkpoint):
        refuse_unused("where no commit is needed", "on_no_commit")
    state, open_one = StateFile(file), connect(broker, every)
    with state.locked():
        before = state.read()
        if before is not None and (begun := before.begun):
            raise UsageError(
                f"{state.path}: a recovery of {plural(len(begun), 'pipeline')} has begun, and was not undone "
                f"({shorten(', '.join(member.name for member in begun))}): undo it with 'recover "
                "restore', or move the file away if the recovery is complete"
            )
        how = {**policies, "policy": execution.policy, "at_once": max_active}
        fleet = Fleet.of(plan_all(every, open_one, place, **how))
        state.write(fleet)
    print_result(
        execution.output,
        fleet.as_json(),
        [fleet.markdown, "", f"Plan {fleet.digest} is saved in {state.path}; nothing was moved"],
    )


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

    If a pipeline fails, no other pipelines are started.
    """
    state = StateFile(file)
    with state.locked():
        fleet = state.require()
        if digest is not None:
            fleet.check_digest(digest)
        if not execution.execute:
            execution.print_receipt(fleet.as_json(), "", [fleet.markdown, "", *_stages(fleet)])
            return
        if undone := [each for each in fleet.members if each.stage in ("restoring", "restored")]:
            raise UsageError(
                f"{state.path}: {len(undone)} of {len(fleet.members)} pipelines were restored, and would not "
                "be moved: finish 'recover restore', then plan again"
            )
        moves = _moves(fleet, state, broker, execution)
        failures = moves.apply(
            quiet_period=execution.quiet_period,
            max_age=timedelta(seconds=max_age),
            at_once=max_active,
        )
    remedy = "run 'recover apply' again to continue, or 'recover restore' to undo all moves"
    _conclude(moves.fleet, failures, execution.output, remedy)


@recover.command("restore", cls=_FileCommand)
@file_argument
@allow_stale_option
@move_options
@at_once_option
@broker_options
def restore_command(
    file: Path, allow_stale: bool, execution: Execution, max_active: int, broker: BrokerOptions
) -> None:
    """Undo the move of every pipeline that was moved."""
    state = StateFile(file)
    with state.locked():
        fleet = state.require()
        if not execution.execute:
            names = [member.name for member in fleet.begun]
            lines = [f"group {name} would be restored" for name in names]
            execution.print_receipt({"pipelines": names}, "", lines)
            return
        moves = _moves(fleet, state, broker, execution)
        failures = moves.restore(
            quiet_period=execution.quiet_period,
            policy=None if execution.policy == CheckpointPolicy() else execution.policy,
            allow_stale=allow_stale,
            at_once=max_active,
        )
    _conclude(moves.fleet, failures, execution.output, "run 'recover restore' again for these")


@recover.command("status", cls=_FileCommand)
@file_argument
@broker_options
@output_option
def status_command(file: Path, broker: BrokerOptions, output: str) -> None:
    """Show the progress of each pipeline, and where its groups and checkpoint are now."""
    fleet = StateFile(file).require()
    open_one = connect(broker, [member.plan.names for member in fleet.members])
    rows, found = [["PIPELINE", "STAGE", "NOW", "LAG", "ERROR"]], []
    for member in fleet.members:
        state, lag = _where(member, open_one)
        rows.append([member.name, member.stage, state, lag, shorten(member.error or "-")])
        found.append(
            {"pipeline": member.name, "stage": member.stage, "now": state, "lag": lag, "error": member.error}
        )
    value = {"digest": fleet.digest, "pipelines": found}
    print_result(output, value, [f"Plan {fleet.digest}", *align_rows(rows), "", *_stages(fleet)])


def _where(member: Member, open_one: Open) -> tuple[str, str]:
    from airflow_kafka_offsets.moves.fleet import pipeline_state

    try:
        state, lag = pipeline_state(open_one(member.plan.names), member.plan)
    except KafkaOffsetsError as error:
        return f"unknown ({shorten(error)})", "-"
    return state, f"{lag:,}"


def _moves(fleet: Fleet, state: StateFile, broker: BrokerOptions, execution: Execution) -> FleetMoves:
    from airflow_kafka_offsets.moves.fleet import FleetMoves

    open_one = connect(broker, [member.plan.names for member in fleet.members])
    return FleetMoves(fleet, state.write, open_one, execution.metadata)


def _stages(fleet: Fleet) -> list[str]:
    """Return the number of pipelines in each stage, as text."""
    numbers = Counter(member.stage for member in fleet.members)
    stages = ", ".join(f"{number} {stage}" for stage, number in numbers.items())
    return [f"{plural(len(fleet.members), 'pipeline')}: {stages}"]


def _conclude(fleet: Fleet, failures: Sequence[Failure], output: str, remedy: str) -> None:
    """Print the result; exit 1 if a pipeline has failed."""
    print_result(output, fleet.as_json(), _stages(fleet))
    for failure in failures:
        click.echo(f"Error: group {failure}", err=True)
    if failures:
        click.echo(f"{len(failures)} failed; {remedy}", err=True)
        raise SystemExit(REFUSED)
