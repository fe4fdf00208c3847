"""Plans in files: ``--save-plan`` of a reset or a failover writes them, ``--plan`` applies them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.connections import open_checkpoint
from airflow_kafka_offsets.cli.execution import Execution, print_result
from airflow_kafka_offsets.cli.options import Option, duration_option
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.saved_plan import MAX_AGE, Names
from airflow_kafka_offsets.model.topics import plain_names

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.groups import GroupIds
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.saved_plan import SavedPlan

_FILE = click.Path(dir_okay=False, path_type=Path)

save_plan_option: Option = click.option(
    "--save-plan",
    type=_FILE,
    help="Write the plan to this new file, for --plan; not with --execute.",
)
plan_option: Option = click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Apply the plan in this file, from --save-plan or an operator; replaces GROUP and the target.",
)
max_age_option: Option = duration_option(
    "--max-age", f"{MAX_AGE.days}d", "after which the plan of --plan is too old."
)


def save(
    execution: Execution,
    plan: PipelinePlan,
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    file: Path,
    *,
    group_id: GroupIds | None,
    topics: Sequence[str] | None,
    allow_new_cluster: bool = False,
    mirror: Mapping[str, Any] | None = None,
    allow_running_mirror: bool = False,
) -> None:
    """
    Show a plan, and write it to a file.

    :param group_id: the groups as given; ``None`` for several groups without a checkpoint.
    :param mirror: the mirror of a failover, as plain JSON.
    :raises UsageError: if the file exists, or cannot be written.
    """
    from airflow_kafka_offsets.moves.saved import save_plan
    from airflow_kafka_offsets.readings.record_times import look_up_times

    if execution.execute:
        raise UsageError(
            "--save-plan and --execute contradict each other: save the plan, then give it to --plan"
        )
    plan = look_up_times(client, plan)
    execution.print_lines(*plan.tables())
    plan.check()
    given = click.get_current_context().params
    names = Names(
        plain_names(group_id),
        list(topics) if topics else None,
        None if checkpoint is None else checkpoint.location,
        given.get("checkpoint_conn_id"),
        given.get("kafka_config_id"),
        mirror,
    )
    saved = save_plan(
        client,
        checkpoint,
        plan,
        names,
        policy=execution.policy,
        allow_new_cluster=allow_new_cluster,
        allow_running_mirror=allow_running_mirror,
    )
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(json.dumps(saved.value, indent=2) + "\n")
    except FileExistsError:
        raise UsageError(
            f"--save-plan {file}: the file exists and is not overwritten: name another file"
        ) from None
    except OSError as error:
        raise UsageError(f"--save-plan {file}: cannot be written ({error.strerror})") from error
    print_result(execution.output, saved.value, [saved.markdown, f"Plan {saved.digest} is saved in {file}"])


def apply_saved_failover(execution: Execution, file: str, target: OffsetsClient, max_age: float) -> None:
    """
    Apply the plan of a failover in a file.

    :param target: the mirror.
    :param max_age: seconds.
    """
    from airflow_kafka_offsets.moves.saved import read_saved_plan
    from airflow_kafka_offsets.moves.saved_failover import plan_saved_failover

    saved = read_saved_plan(file, "--plan")
    checkpoint = _checkpoint(saved)
    now, age = datetime.now(tz=timezone.utc), timedelta(seconds=max_age)
    plan = plan_saved_failover(target, checkpoint, saved, now=now, max_age=age)
    _finish(execution, saved, plan, target, checkpoint)


def apply_saved_plan(
    execution: Execution, file: str, client: OffsetsClient, checkpoint: SparkCheckpoint | None, max_age: float
) -> None:
    """
    Apply the plan in a file, or show it without --execute.

    :param checkpoint: checkpoint from the command line; default: the plan's own.
    :param max_age: maximum age of the plan in seconds.
    """
    from airflow_kafka_offsets.moves.saved import plan_saved, read_saved_plan

    saved = read_saved_plan(file, "--plan")
    if checkpoint is None:
        checkpoint = _checkpoint(saved)
    elif refusals := saved.name_refusals(None, checkpoint.location):
        raise PlanRefusedError(refusals)
    by = execution.metadata
    now, age = datetime.now(tz=timezone.utc), timedelta(seconds=max_age)
    plan = plan_saved(client, checkpoint, saved, now=now, metadata=by, max_age=age)
    _finish(execution, saved, plan, client, checkpoint)


def _checkpoint(saved: SavedPlan) -> SparkCheckpoint | None:
    names = saved.names
    if names.checkpoint_location is None:
        return None
    return open_checkpoint(names.checkpoint_location, names.checkpoint_conn_id, "--plan")


def _finish(
    execution: Execution,
    saved: SavedPlan,
    plan: PipelinePlan,
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
) -> None:
    execution.print_lines(f"Plan {saved.digest} of {saved.created:%Y-%m-%d %H:%M} UTC")
    by = replace(execution.metadata, plan=saved.digest)
    execution.finish_pipeline_plan(plan, client, checkpoint, metadata=by)
