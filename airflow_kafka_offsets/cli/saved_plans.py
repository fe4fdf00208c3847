"""Plans in files: ``--save-plan`` of a reset or a failover writes them, ``--plan`` applies them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.connections import open_checkpoint
from airflow_kafka_offsets.cli.execution import Execution, print_result, write_new_file
from airflow_kafka_offsets.cli.options import NEW_FILE, Option, duration_option, refuse_unused
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.groups import GroupIds
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.saved_plan import MAX_AGE, Names
from airflow_kafka_offsets.model.topics import plain_names

save_plan_option: Option = click.option(
    "--save-plan",
    type=NEW_FILE,
    help="Write the plan to this new file, for --plan; not with --execute.",
)
plan_option: Option = click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Apply the plan in this file, from --save-plan or an operator; replaces GROUP and the target.",
)
max_age_option: Option = duration_option("--max-age", f"{MAX_AGE.days}d", "after which the plan is too old.")


def save_to_file(
    execution: Execution,
    plan: PipelinePlan,
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    file: Path,
    *,
    group_id: GroupIds | None,
    mirror: Mapping[str, Any] | None = None,
    **allowed: Any,
) -> None:
    """
    Show a plan, and write it to a file.

    :param group_id: the groups as given; ``None`` for several groups without a checkpoint.
    :param allowed: further fields of the plan, see :func:`~airflow_kafka_offsets.moves.saved.save_plan`.
    """
    from airflow_kafka_offsets.moves.saved import save_plan
    from airflow_kafka_offsets.readings.topic_times import look_up_times

    if execution.execute:
        raise UsageError(
            "--save-plan and --execute contradict each other: save the plan, then give it to --plan"
        )
    refuse_unused("with --save-plan, which moves nothing", "quiet_period")
    plan = look_up_times(client, plan)
    execution.print_lines(*plan.tables())
    plan.check()
    given = click.get_current_context().params
    names = Names(
        plain_names(group_id),
        given["topics"],
        None if checkpoint is None else checkpoint.location,
        given.get("checkpoint_conn_id"),
        given.get("kafka_config_id"),
        mirror,
    )
    saved = save_plan(client, checkpoint, plan, names, policy=execution.policy, **allowed)
    write_new_file("--save-plan", file, json.dumps(saved.value, indent=2) + "\n")
    outcome = f"Plan {saved.digest} is saved in {file}"
    print_result(execution.output, saved.value, [saved.markdown, outcome], outcome)


def refuse_with_plan(*used: str) -> None:
    """Refuse the options that a saved plan has decided: all but ``used``, and those of every such command."""
    used += ("plan_file", "max_age", "dry_run", "execute", "output", "quiet_period", "timeout")
    options = (each for each in click.get_current_context().command.params if isinstance(each, click.Option))
    refuse_unused("with --plan", *(name for each in options if (name := str(each.name)) not in used))


def apply_saved_plan(
    execution: Execution,
    file: str,
    client: OffsetsClient,
    max_age: float,
    plan_again: Callable[..., PipelinePlan],
    checkpoint: SparkCheckpoint | None = None,
) -> None:
    """
    Apply the plan in a file, or show it without --execute.

    :param plan_again: plans the saved move, and refuses it if something has changed since.
    :param checkpoint: checkpoint from the command line; default: the plan's own.
    """
    from airflow_kafka_offsets.moves.saved import read_saved_plan

    saved = read_saved_plan(file, "--plan")
    names = saved.names
    if checkpoint is not None:
        PlanRefusedError.raise_if(saved.name_refusals(None, checkpoint.location))
    elif names.checkpoint_location is not None:
        checkpoint = open_checkpoint(names.checkpoint_location, names.checkpoint_conn_id, "--plan")
    now, age = datetime.now(tz=timezone.utc), timedelta(seconds=max_age)
    plan = plan_again(client, checkpoint, saved, now=now, max_age=age)
    execution.print_lines(f"Plan {saved.digest} of {saved.created:%Y-%m-%d %H:%M} UTC")
    by = replace(execution.metadata, plan=saved.digest)
    execution.finish_pipeline_plan(plan, client, checkpoint, metadata=by)
