"""Prints results, and applies plans with ``--execute``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from airflow_kafka_offsets.cli.options import (
    Option,
    choice_option,
    combine_options,
    duration_option,
    output_option,
)
from airflow_kafka_offsets.errors import (
    CheckpointMovedError,
    GroupMovedError,
    KafkaOffsetsError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD, CheckpointPolicy, PendingBatch, Sink
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import format_csv
from airflow_kafka_offsets.model.offsets import Positions
from airflow_kafka_offsets.model.receipt import outcome_lines

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan


# Exit codes are public, see docs/reference/stability.md.
REFUSED = 1
USAGE = 2
UNCHECKED = 3


def print_result(output: str, value: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a result as JSON, or as lines."""
    for line in [json.dumps(value, indent=2, default=str)] if output == "json" else lines:
        click.echo(line)


def output_error(what: str, error: OSError, outcome: str = "") -> KafkaOffsetsError:
    """Return an error for a standard output that cannot be written, and discard the remaining output."""
    # At its end Python would fail again on the remaining output, with another text.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    return KafkaOffsetsError(f"{what} cannot be written: {error.strerror}{outcome}")


@dataclass(frozen=True)
class Execution:
    """Whether and how a command applies its plan, and the format of its output."""

    dry_run: bool
    execute: bool
    output: str
    policy: CheckpointPolicy | None = None
    quiet_period: float = QUIET_PERIOD
    how: str = "give --execute to apply the plan"
    """How to apply a plan that was only shown."""

    def __post_init__(self) -> None:
        if self.dry_run and self.execute:
            raise UsageError("--dry-run and --execute contradict each other: give only one")

    @property
    def metadata(self) -> CommitMetadata:
        """The origin that the command's commits record."""
        return CommitMetadata(tool=click.get_current_context().command_path, at=int(time.time()))

    def finish_plan(
        self,
        plan: PipelinePlan,
        apply: Callable[[PipelinePlan], dict[str, Any]],
        *,
        client: OffsetsClient | None = None,
        save: Path | None = None,
        export: bool = False,
    ) -> None:
        """
        Show a plan, apply it with --execute, and print the receipt.

        :param apply: checks and applies a plan, see :mod:`airflow_kafka_offsets.moves.apply`.
        :param client: looks up the times of records for the tables, if there is a broker.
        :param save: file for the groups' offsets before the move, as Kafka's CSV.
        :param export: print the groups' planned offsets as Kafka's CSV instead of a table.
        """
        from airflow_kafka_offsets.readings.record_times import look_up_times

        if client is not None and not export:
            # Not for CSV, which has no column for times: the lookup takes seconds.
            plan = look_up_times(client, plan)
        if export:
            # Do not export a refused plan: another tool could apply it.
            if not plan.refusals:
                click.echo(
                    format_csv({group_plan.group_id: group_plan.after for group_plan in plan.group_plans}),
                    nl=False,
                )
        elif self.output == "table":
            self.print_lines(*plan.tables())
        if not plan.refusals:
            save_offsets(
                save,
                {group_plan.group_id: group_plan.before for group_plan in plan.group_plans},
                execute=self.execute,
            )
        # Check after showing: the reasons for a refusal are part of the plan.
        plan.check()
        planned = plan.make_receipt(plan_only=not self.execute)
        try:
            receipt = apply(plan) if self.execute else planned
        except (KafkaOffsetsError, KeyboardInterrupt) as error:
            if not export and _may_have_written(error):
                self.print_receipt(planned, "the offsets may be moved in part")
            raise
        if self.execute and not export:
            saved = [f"the offsets before the move are saved in {save}"] if save else []
            self.print_lines(*outcome_lines(receipt), *saved)
        self.print_receipt(None if export else receipt, "the offsets were moved")

    def finish_pipeline_plan(
        self,
        plan: PipelinePlan,
        client: OffsetsClient,
        checkpoint: SparkCheckpoint | None,
        *,
        metadata: CommitMetadata | None = None,
        **shown: Any,
    ) -> None:
        """Finish a plan for groups and checkpoint; ``shown`` is passed to :meth:`finish_plan`."""
        from airflow_kafka_offsets.moves.apply import apply_pipeline

        how = metadata or self.metadata, checkpoint, self.quiet_period
        self.finish_plan(plan, lambda plan: apply_pipeline(client, plan, *how), client=client, **shown)

    def finish_checkpoint_plan(self, plan: PipelinePlan, checkpoint: SparkCheckpoint) -> None:
        """Finish a plan for a checkpoint without groups."""
        from airflow_kafka_offsets.moves.apply import apply_checkpoint

        how = self.metadata, checkpoint, self.quiet_period
        self.finish_plan(plan, lambda plan: apply_checkpoint(plan, *how))

    def print_lines(self, *lines: str) -> None:
        """Print the lines of a plan, unless the output is JSON."""
        if self.output == "table":
            print_result(self.output, {}, lines)

    def print_receipt(self, receipt: Mapping[str, Any] | None, done: str) -> None:
        """Print the receipt of a command; ``done`` is used in the error text if that fails."""
        try:
            if receipt is not None:
                print_result(self.output, receipt, ())
        except OSError as error:
            outcome = done if self.execute else "nothing was changed"
            raise output_error("the receipt", error, f"; {outcome}") from error
        if not self.execute:
            click.echo(f"Nothing was changed: {self.how}.", err=True)


def _may_have_written(error: BaseException) -> bool:
    """Return whether an error of a move may have come after its first write: its receipt is needed then."""
    progress = error.progress if isinstance(error, KafkaOffsetsError) else None
    # After the first two nothing was written; a commit that a move has overtaken is made again.
    refused = isinstance(error, PlanRefusedError | GroupMovedError | CheckpointMovedError)
    return not refused or bool(progress and progress.written)


def save_offsets(save: Path | None, groups: Mapping[str, Positions], *, execute: bool) -> None:
    """
    Write the committed offsets of groups to the file of ``--save``, if it is given.

    :param execute: whether the command will overwrite them; if not, the file is not written.
    :raises UsageError: if the file cannot be written, or exists: it may be the only copy of an earlier state.
    """
    if save is None:
        return
    try:
        if execute:
            with save.open("x", encoding="utf-8") as file:
                file.write(format_csv(groups))
        elif save.exists():
            raise FileExistsError
    except FileExistsError:
        raise UsageError(
            f"--save {save}: the file exists and is not overwritten: name another file; nothing was changed"
        ) from None
    except OSError as error:
        raise UsageError(
            f"--save {save}: cannot be written ({error.strerror}); nothing was changed"
        ) from error


_execution_options = (
    click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; this is the default."),
    click.option("--execute", is_flag=True, help="Apply the plan."),
    output_option,
)

execution_options = combine_options("execution", Execution, *_execution_options)

_sink_options = (
    click.option(
        "--sink",
        metavar="|".join(get_args(Sink)),
        help="Sink of the query. For any other sink: --idempotent-sink, or seek only.",
    ),
    click.option(
        "--idempotent-sink",
        is_flag=True,
        help="The query writes with a foreachBatch that overwrites by the records' keys.",
    ),
    click.option(
        "--sink-location",
        metavar="URI",
        help="Directory of a file, delta, iceberg or hudi sink: the command checks its recorded batches.",
    ),
)


quiet_period_option = duration_option(
    "--quiet-period",
    f"{QUIET_PERIOD:g}s",
    "without a write to the checkpoint, after which the query counts as stopped.",
)


def _move_options(
    *policy: Option,
    make: Callable[..., Execution] = Execution,
    output: Sequence[Option] = _execution_options,
) -> Option:
    return combine_options(
        "execution",
        make,
        *output,
        combine_options("policy", CheckpointPolicy.parse, *policy),
        quiet_period_option,
    )


_policy_options = (
    choice_option(
        "--on-pending-batch",
        PendingBatch,
        "fail",
        "For an unfinished batch; discard needs --sink or --idempotent-sink.",
    ),
    *_sink_options,
    click.option("--allow-stateful", is_flag=True, help="Move a query whose state stays as it is."),
)

move_options = _move_options(*_policy_options)
"""The :data:`execution_options`, and options for the move of a checkpoint."""


def verb_options(*, execute: bool, how: str = "") -> Option:
    """
    Return the options of a command whose name says whether it applies its plan.

    :param how: how to apply the plan, if the command only shows it.
    """

    def make(**options: Any) -> Execution:
        return Execution(dry_run=not execute, execute=execute, how=how, **options)

    return _move_options(*_policy_options, make=make, output=[output_option])


truncate_options = _move_options(*_sink_options)
"""The :data:`move_options` of truncate: it always discards batches, and restores the state too."""
