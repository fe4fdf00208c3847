"""Prints results, and applies plans with ``--execute``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.options import (
    Option,
    add_options,
    choice_option,
    combine_options,
    duration_option,
    new_cluster_option,
    no_commit_option,
    out_of_range_option,
    output_option,
    place_options,
)
from airflow_kafka_offsets.errors import (
    CheckpointMovedError,
    GroupMovedError,
    KafkaOffsetsError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.local_disk import write_new
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD, CheckpointPolicy, PendingBatch, Sink
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import format_csv
from airflow_kafka_offsets.model.offsets import Positions
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.receipt import outcome_lines

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan


# Exit codes are public, see docs/reference/stability.md.
REFUSED = 1
USAGE = 2
UNCHECKED = 3


def print_result(
    output: str, value: Mapping[str, Any], lines: Iterable[str], outcome: str | None = None
) -> None:
    """Print a result as JSON, or as lines; ``outcome`` is used in the error text if that fails."""
    try:
        for line in [json.dumps(value, indent=2, default=str)] if output == "json" else lines:
            click.echo(line)
    except OSError as error:
        if outcome is None:  # click ends the command without a text if a pipe was closed
            raise
        raise output_error(error, f"; {outcome}") from error


def print_error(text: str) -> None:
    """Print a line on standard error; a closed terminal must not keep a command from its receipt."""
    with suppress(OSError):
        click.echo(text, err=True)


def now_text() -> str:
    """Return the current time in ISO 8601."""
    return iso_time(int(time.time()) * 1000)


def output_error(error: OSError, outcome: str = "") -> KafkaOffsetsError:
    """Return an error for a standard output that cannot be written, and discard the remaining output."""
    # At its end Python would fail again on the remaining output, with another text.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    return KafkaOffsetsError(f"the output cannot be written: {error.strerror}{outcome}")


@dataclass(frozen=True)
class Execution:
    """Whether and how a command applies its plan, and the format of its output."""

    execute: bool
    output: str
    policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    quiet_period: float = QUIET_PERIOD
    how: str = "give --execute to apply the plan"
    """How to apply a plan that was only shown."""
    dry_run: InitVar[bool] = False

    def __post_init__(self, dry_run: bool) -> None:
        if dry_run and self.execute:
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
        from airflow_kafka_offsets.readings.topic_times import look_up_times

        if client is not None and not export:
            # Not for CSV, which has no column for times: the lookup takes seconds.
            plan = look_up_times(client, plan)
        if not export:
            self.print_lines(*plan.tables())
        elif not plan.refusals:  # Do not export a refused plan: another tool could apply it.
            text = format_csv({group.group_id: group.after for group in plan.group_plans})
            self.print_lines(*text.split("\n")[:-1])
        if not plan.refusals:
            before = {group.group_id: group.before for group in plan.group_plans}
            save_offsets(save, before, execute=self.execute)
        # Check after showing: the reasons for a refusal are part of the plan.
        plan.check()
        try:
            receipt = apply(plan) if self.execute else plan.make_receipt(plan_only=True)
        except (KafkaOffsetsError, KeyboardInterrupt) as error:
            if self.execute and _may_have_written(error):
                outcome = "the offsets may be moved in part"
                if isinstance(error, KeyboardInterrupt):  # other errors name the outcome themselves
                    print_error(f"Stopped: {outcome}")
                self.print_receipt(None if export else plan.make_receipt(), outcome)
            raise
        saved = [f"the offsets before the move are saved in {save}"] if save else []
        lines = [*outcome_lines(receipt), *saved] if self.execute else []
        self.print_receipt(None if export else receipt, "the offsets were moved", lines)

    def finish_pipeline_plan(
        self,
        plan: PipelinePlan,
        client: OffsetsClient | None,
        checkpoint: SparkCheckpoint | None,
        *,
        metadata: CommitMetadata | None = None,
        **shown: Any,
    ) -> None:
        """Finish a plan for groups and checkpoint, or without a client for a checkpoint alone."""
        from airflow_kafka_offsets.moves.apply import apply_checkpoint, apply_pipeline

        how: Any = (metadata or self.metadata, checkpoint, self.quiet_period)
        apply = apply_checkpoint if client is None else partial(apply_pipeline, client)
        self.finish_plan(plan, lambda plan: apply(plan, *how), client=client, **shown)

    def print_lines(self, *lines: str) -> None:
        """Print the lines of a plan that is not applied yet, unless the output is JSON."""
        if self.output == "table":
            print_result("table", {}, lines, "nothing was changed")

    def print_receipt(self, receipt: Mapping[str, Any] | None, done: str, lines: Iterable[str] = ()) -> None:
        """Print a receipt as JSON, or as lines; ``done`` is used in the error text if that fails."""
        if receipt is not None:
            outcome = done if self.execute else "nothing was changed"
            print_result(self.output, receipt, lines, outcome)
        if not self.execute:
            click.echo(f"Nothing was changed: {self.how}.", err=True)


def _may_have_written(error: BaseException) -> bool:
    """Return whether an error of a move may have come after its first write: its receipt is needed then."""
    progress = error.progress if isinstance(error, KafkaOffsetsError) else None
    # In the first two cases nothing was written; in the third the command commits again.
    refused = isinstance(error, PlanRefusedError | GroupMovedError | CheckpointMovedError)
    return not refused or bool(progress and progress.written)


def save_offsets(save: Path | None, groups: Mapping[str, Positions], *, execute: bool) -> None:
    """Write groups' offsets to the new file of ``--save``, if it is given and the command overwrites them."""
    if save is not None:
        # A file that exists may be the only copy of an earlier state.
        write_new_file("--save", save, format_csv(groups) if execute else None, "; nothing was changed")


def write_new_file(option: str, path: Path, text: str | None, outcome: str = "") -> None:
    """Write the new file of an option, or only check that it is new; errors end with ``outcome``."""
    try:
        if text is not None:
            # After a power failure, this file may be the only copy of the offsets before the move.
            write_new(path, text.encode())
        elif path.exists():
            raise FileExistsError
    except FileExistsError:
        raise UsageError(
            f"{option} {path}: the file exists and is not overwritten: name another file{outcome}"
        ) from None
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror}){outcome}") from error


execute_option = click.option("--execute", is_flag=True, help="Apply the plan.")

_execution_options = (
    click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; this is the default."),
    execute_option,
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

quiet_period_option = duration_option(
    "--quiet-period",
    f"{QUIET_PERIOD:g}s",
    "without a write to the checkpoint, after which the query counts as stopped.",
)


def checkpoint_move_options(*own: Option, policy: Sequence[Option] = _policy_options, **fixed: Any) -> Option:
    """
    Return the options of a command that may move a checkpoint.

    :param own: options for other fields of an :class:`Execution`.
    :param fixed: values of fields without an option.
    """
    own += (combine_options("policy", CheckpointPolicy.parse, *policy),)
    if fixed.get("execute") is not False:
        own += (quiet_period_option,)
    return combine_options("execution", partial(Execution, **fixed), *own)


move_options = checkpoint_move_options(*_execution_options)
"""The :data:`execution_options`, and options for the move of a checkpoint."""

plan_options = checkpoint_move_options(output_option, execute=False)
"""The :data:`move_options` of a command that only plans."""

target_options = add_options(place_options, out_of_range_option, no_commit_option, new_cluster_option)
"""The target of a reset, and what it allows."""

reset_options = add_options(target_options, move_options)

truncate_options = checkpoint_move_options(*_execution_options, policy=_sink_options)
"""The :data:`move_options` of truncate: it always discards batches, and restores the state too."""
