"""The commands ``recover``: move many pipelines together, also while Airflow is down."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import BrokerOptions, broker_options
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    execute_option,
    move_options,
    print_result,
    quiet_period_option,
)
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    allow_stale_option,
    combine_options,
    new_cluster_option,
    output_option,
)
from airflow_kafka_offsets.cli.recover_plans import plan_command, plan_failover_command
from airflow_kafka_offsets.cli.recovery_file import (
    FileCommand,
    StateFile,
    at_once_option,
    connect,
    file_argument,
    refuse_removed,
    report_failures,
)
from airflow_kafka_offsets.cli.saved_plans import max_age_option
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.fleet import Failure, Fleet, Member
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import plural, shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.moves.fleet import Open, Opened


@click.group(cls=CommandGroup)
def recover() -> None:
    """
    Move many pipelines together.

    FILE lists the pipelines, in YAML or JSON. The plans and the progress are saved beside it, in
    FILE.recovery.json. The plans are resets to one target ('plan'), or failovers to a mirror
    ('plan-failover'); the other commands are the same for both.
    """


recover.add_command(plan_command)
recover.add_command(plan_failover_command)


@recover.command("apply", cls=FileCommand)
@file_argument
@click.option(
    "--digest", metavar="DIGEST", help="Refuse a plan with another digest. Give at least the first 8 digits."
)
@max_age_option
@at_once_option(8)
@combine_options(
    "execution",
    Execution,
    quiet_period_option,
    execute_option,
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
    Move the pipelines as planned.

    They move in waves. The same command continues an interrupted run. If a reset fails, no other pipelines
    are started; if a failover fails, the others still move.
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
        _run_moves("apply", fleet, state, broker, execution, **how)
        if all(member.stage == "applied" for member in fleet.members):
            why = "each pipeline was applied before; 'recover status' shows where it is now"
            click.echo(f"Nothing was moved: {why}", err=True)
    if refused := ", ".join(each.pipeline for each in fleet.refused):
        click.echo(f"not moved, because the plan refused them: {refused}", err=True)
        raise SystemExit(REFUSED)


@recover.command("restore", cls=FileCommand)
@file_argument
@allow_stale_option
@new_cluster_option
@move_options
@at_once_option(8)
@broker_options
def restore_command(
    file: Path, execution: Execution, max_active: int, broker: BrokerOptions, **allowed: bool
) -> None:
    """Undo the move of every pipeline that was moved."""
    state = StateFile(file)
    with state.locked():
        fleet = state.require()
        if not execution.execute:
            names = [member.name for member in fleet.begun]
            lines = [f"group {name} would be restored" for name in names]
            planned = [member.name for member in fleet.members if member.stage == "planned"]
            also = "would be restored only if another copy of the file has moved it"
            lines += [f"group {name} {also}" for name in planned]
            execution.print_receipt({"pipelines": names}, "", lines)
            return
        policy = None if execution.policy == CheckpointPolicy() else execution.policy
        how = {"policy": policy, "at_once": max_active, **allowed}
        after = _run_moves("restore", fleet, state, broker, execution, **how)
        if all(member.stage == "planned" for member in (*fleet.members, *after.members)):
            raise UsageError(f"{state.path}: no pipeline has begun to move: there is nothing to restore")


@recover.command("status", cls=FileCommand)
@file_argument
@broker_options
@output_option
def status_command(file: Path, broker: BrokerOptions, output: str) -> None:
    """
    Show the progress and the position of each pipeline.

    Exit 1 if the position is unknown for a pipeline, such as on another cluster than that of the plan.
    """
    from airflow_kafka_offsets.moves.fleet import call_each
    from airflow_kafka_offsets.readings.pipeline_state import pipeline_state

    def state_of(member: Member, opened: Opened | KafkaOffsetsError) -> tuple[str, str] | Failure:
        try:
            if isinstance(opened, KafkaOffsetsError):
                raise opened
            now, behind = pipeline_state(*opened, member.plan)
        except KafkaOffsetsError as error:
            return Failure(member.name, error)
        return now, f"{behind:,}"

    fleet = StateFile(file).require()
    open_one = _connect(fleet, broker)
    found = call_each(state_of, fleet.members, lambda member: open_one(member.plan.target_names))
    header = ["PIPELINE", "STAGE", "NOW", "LAG", "ERROR"]
    rows: list[tuple[str, str, str, str, str | None]] = []
    for member, state in zip(fleet.members, found, strict=True):
        now, lag = ("unknown", "-") if isinstance(state, Failure) else state
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
    report_failures([each for each in found if isinstance(each, Failure)], "could not be compared")


def _run_moves(
    verb: str, fleet: Fleet, state: StateFile, broker: BrokerOptions, execution: Execution, **how: Any
) -> Fleet:
    """Apply or restore a recovery, print the result, and return it; exit 1 if a pipeline has failed."""
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
    report_failures(failures, f"failed; {remedy}")
    return moves.fleet


def _connect(fleet: Fleet, broker: BrokerOptions) -> Open:
    return connect(broker, [member.plan.target_names for member in fleet.members])


def _stages(fleet: Fleet) -> list[str]:
    """Return the number of pipelines in each stage, as text."""
    stages = [*(member.stage for member in fleet.members), *("refused" for _ in fleet.refused)]
    numbers = ", ".join(f"{number} {stage}" for stage, number in Counter(stages).items())
    return [f"{plural(len(stages), 'pipeline')}: {numbers}"]
