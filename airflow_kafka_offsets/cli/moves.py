"""What do the commands that move offsets share: where to, what is allowed, and when it is done?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from airflow_kafka_offsets.cli.options import Seconds, not_written, print_json
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.checkpoint_plan import (
    LONGEST_QUIET_PERIOD,
    QUIET_PERIOD,
    CheckpointPolicy,
    Sink,
)
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.reset_scenarios import Scenario

F = TypeVar("F", bound=Callable[..., Any])


def scenario_options(command: Any) -> Any:
    """Add the options that say where to, with the names of Kafka's tool; exactly one is to be given."""
    for option in (
        click.option(
            "--from-file", metavar="FILE", help="Kafka's CSV: topic,partition,offset or group,topic,..."
        ),
        click.option("--by-duration", metavar="PnDTnHnMnS", help="Where it stood this long ago."),
        click.option("--shift-by", type=int, metavar="N", help="By so many offsets; negative for back."),
        click.option("--to-datetime", metavar="TIME", help="ISO 8601; UTC where no zone is given."),
        click.option(
            "--to-offset", metavar="N", help="The same offset for every partition, or Spark's JSON."
        ),
        click.option("--to-current", is_flag=True, help="Where it stands: commits the same again."),
        click.option("--to-latest", is_flag=True, help="Log end."),
        click.option("--to-earliest", is_flag=True, help="Log start."),
    ):
        command = option(command)
    return command


def scenario_of(options: Mapping[str, Any]) -> Scenario:
    """Return the scenario that the options name, and that one only."""
    from airflow_kafka_offsets.model.parameters import exactly_one
    from airflow_kafka_offsets.moves.scenario import parse_scenario

    given = {
        f"--{name.replace('_', '-')}": None if value is False else value for name, value in options.items()
    }
    flag, value = exactly_one(given)
    if value is True:
        return parse_scenario("to_offset", flag.removeprefix("--to-"))
    return parse_scenario(flag.removeprefix("--").replace("-", "_"), value)


SCENARIO_OPTIONS = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "to_datetime",
    "shift_by",
    "by_duration",
    "from_file",
)


def scenario_names_partitions(scenario: Scenario) -> bool:
    """Whether a scenario says by itself which partitions it moves."""
    from airflow_kafka_offsets.model.reset_scenarios import FromFile

    return isinstance(scenario, FromFile) or scenario.named is not None


def out_of_range_option(
    text: str = "For an offset outside the log or a time in the future.",
) -> Callable[[F], F]:
    """Return the option ``--on-out-of-range``; the text says for what."""
    return click.option(
        "--on-out-of-range",
        type=click.Choice(get_args(OutOfRangePolicy)),
        default="fail",
        show_default=True,
        help=text,
    )


def checkpoint_options(command: Any) -> Any:
    """Add the options that say what may happen to a checkpoint."""
    for option in (
        click.option(
            "--quiet-period",
            type=Seconds(LONGEST_QUIET_PERIOD, zero=True),
            default=QUIET_PERIOD,
            show_default=True,
            help="Seconds without a write after which the query counts as stopped.",
        ),
        click.option("--allow-state", is_flag=True, help="Move a query although its state stays as it is."),
        click.option("--sink-location", metavar="URI", help="Directory that a file sink writes to."),
        click.option(
            "--sink",
            metavar="|".join(get_args(Sink)),
            help="Where the query writes to; idempotent: a foreachBatch that overwrites by the records' own key. "
            "For any other sink: seek only.",
        ),
        click.option(
            "--pending-batch",
            type=click.Choice(["fail", "discard"]),
            default="fail",
            show_default=True,
            help="For a batch that was begun and not finished; to discard it needs --sink.",
        ),
    ):
        command = option(command)
    return command


def checkpoint_policy(options: dict[str, Any]) -> CheckpointPolicy:
    """Take the options of :func:`checkpoint_options`, but for the quiet period, out of a command's."""
    names = ("pending_batch", "sink", "sink_location", "allow_state")
    return CheckpointPolicy.parse(*(options.pop(name) for name in names))


def execute_options(command: Any) -> Any:
    """Add ``--dry-run`` and ``--execute``."""
    command = click.option("--execute", is_flag=True, help="Do it.")(command)
    return click.option(
        "--dry-run", is_flag=True, help="Show the plan and change nothing; so does giving neither."
    )(command)


def is_executed(options: dict[str, Any]) -> bool:
    """
    Take the options of :func:`execute_options` out of a command's.

    :raises UsageError: if both are given.
    """
    dry_run, execute = options.pop("dry_run"), options.pop("execute")
    if dry_run and execute:
        raise UsageError("--dry-run and --execute contradict each other: give one of them")
    return bool(execute)


def finish(
    plan: PipelinePlan,
    command: str,
    *,
    client: OffsetsClient | None,
    checkpoint: SparkCheckpoint | None = None,
    execute: bool,
    output: str,
    quiet_period: float = QUIET_PERIOD,
    save: Path | None = None,
    export: bool = False,
) -> None:
    """
    Show a plan, refuse it if it must be, carry it out if that was asked for, and print the receipt.

    :param command: which command it is, for the commits' metadata.
    :param client: needed where groups move.
    :param save: file for the groups' offsets that will be overwritten, as Kafka's CSV.
    :param export: print the groups' planned offsets as Kafka's CSV, and no table.
    """
    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
    from airflow_kafka_offsets.model.formats import format_csv
    from airflow_kafka_offsets.moves.apply import apply, look_up_times

    if export:
        click.echo(format_csv({group.group_id: group.after for group in plan.groups}), nl=False)
    elif output == "table":
        for table in (look_up_times(client, plan) if client else plan).tables():
            click.echo(table)
    if save and not plan.refused:
        before = {group.group_id: group.overwritten for group in plan.groups}
        try:
            save.write_text(format_csv(before), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--save {save}: cannot be written ({error.strerror}); nothing was changed"
            ) from error
    metadata = CommitMetadata(tool=f"airflow-kafka-offsets {command}", at=int(time.time()))
    receipt = apply(
        client, plan, metadata, checkpoint=checkpoint, quiet_period=quiet_period, plan_only=not execute
    )
    if output == "json" and not export:
        try:
            print_json(receipt)
        except OSError as error:
            outcome = "; the offsets were moved" if execute else "; nothing was changed"
            raise not_written("the receipt", error, outcome) from error
    if not execute:
        click.echo("Nothing was changed: give --execute to do it.", err=True)
