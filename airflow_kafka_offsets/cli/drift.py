"""The command ``drift``: checks one pipeline by its names, or many from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.connections import (
    BrokerOptions,
    broker_options,
    open_checkpoint,
    pipeline_or_file_options,
)
from airflow_kafka_offsets.cli.execution import REFUSED, UNCHECKED, output_error, print_error, print_result
from airflow_kafka_offsets.cli.options import (
    EXISTING_FILE,
    OptionWording,
    StrictCommand,
    duration_option,
    output_option,
)
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.drift import REPORT_VERSION, reports_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.parameters import LONGEST_GRACE
from airflow_kafka_offsets.model.text import plural, shorten
from airflow_kafka_offsets.model.wording import parameter_text, worded

if TYPE_CHECKING:
    from airflow_kafka_offsets.pipeline import KafkaPipeline
    from airflow_kafka_offsets.readings.drift import CheckedPipeline

Named: TypeAlias = "list[KafkaPipeline] | tuple[SparkCheckpoint, GroupSelection]"
"""The pipelines of a file, or the checkpoint and the groups that the command line names."""


class CheckCommand(StrictCommand):
    """A command whose exit status distinguishes findings from failed checks."""

    unchecked: ClassVar[Mapping[str, Any]] = {"version": REPORT_VERSION, "drifted": None, "groups": []}
    """The JSON of a check that was not possible, besides its error."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit 3 after an error that is not a usage error."""
        try:
            try:
                return super().invoke(ctx)
            except UsageError:
                raise
            except KafkaOffsetsError as error:
                print_error(f"Error: {error}")
                print_result(ctx.params["output"], {**self.unchecked, "error": str(error)}, ())
        except OSError as error:  # of the output: exit 1 would mean that the check has found something
            print_error(f"Error: {output_error(error)}")
        raise SystemExit(UNCHECKED)


def naming_keys(context: click.Context) -> AbstractContextManager[None]:
    """Make error texts name keys of the pipelines file instead of options."""
    from airflow_kafka_offsets.pipeline import FILE_PARSERS

    return worded(OptionWording(context.command, {name: name for name in FILE_PARSERS}))


def _load_pipelines(
    context: click.Context, _option: click.Parameter, file: Path | None
) -> list[KafkaPipeline] | None:
    from airflow_kafka_offsets.pipeline import KafkaPipeline

    if file is None:
        return None
    with naming_keys(context):
        try:
            pipelines = KafkaPipeline.load(file)
        except KafkaOffsetsError as error:
            raise click.BadParameter(str(error)) from None
        missing = f"{parameter_text('checkpoint_location')} is missing"
    for number, pipeline in enumerate(pipelines, 1):
        if not pipeline.checkpoint_location:
            where = f"{file}, entry {number} ({shorten(pipeline.group_id)})"
            raise click.BadParameter(f"{where}: {missing}, so the group cannot be compared with a checkpoint")
    return pipelines


_pipelines_option = click.option(
    "--pipelines",
    callback=_load_pipelines,
    type=EXISTING_FILE,
    help="YAML or JSON file with pipelines; replaces URI and GROUP.",
)


@click.command(cls=CheckCommand)
@pipeline_or_file_options(_pipelines_option, "--pipelines")
@duration_option("--grace", "0s", "after a batch ends until its commit is due.", maximum=LONGEST_GRACE)
@duration_option(
    "--min-headroom",
    None,
    "that the oldest unread record must have left in retention. Default: not checked.",
    allow_zero=False,
)
@broker_options
@output_option
def drift(named: Named, grace: float, min_headroom: float | None, broker: BrokerOptions, output: str) -> None:
    """
    Compare GROUP, the checkpoint at URI and the log.

    Exit 1 if they have drifted, 3 if the check failed.

    GROUP is a group, or JSON such as {"orders": "orders-etl", "source:1": "other"}. With --pipelines, all
    pipelines in a file are compared.
    """
    from airflow_kafka_offsets.readings.drift import pipeline_drift

    how: dict[str, Any] = {"grace": timedelta(seconds=grace), "min_headroom": min_headroom}
    if isinstance(named, list):
        with naming_keys(click.get_current_context()):
            _check_many(named, broker, output, how)
        return
    checkpoint, groups = named
    reports = pipeline_drift(broker.open_client(), checkpoint, groups, **how)
    print_result(output, reports_json(reports), (report.table() for report in reports))
    if any(report.drifted for report in reports):
        raise SystemExit(REFUSED)


def _check_many(
    pipelines: Sequence[KafkaPipeline], broker: BrokerOptions, output: str, how: dict[str, Any]
) -> None:
    from airflow_kafka_offsets.readings.drift import pipelines_json

    connections = dict.fromkeys(pipeline.kafka_config_id for pipeline in pipelines)
    client_of = broker.client_of_each(connections, "the file of --pipelines", "--pipelines")
    checked = [_check(pipeline, client_of, how) for pipeline in pipelines]
    print_result(output, pipelines_json(checked), _lines(checked))
    failed = [one for one in checked if one.error is not None]
    for one in failed:
        click.echo(f"Error: {one.failures()[0]}", err=True)
    if any(one.drifted for one in checked):
        raise SystemExit(REFUSED)
    if failed:
        raise SystemExit(UNCHECKED)


def _check(
    pipeline: KafkaPipeline, client_of: Callable[[str], OffsetsClient], how: dict[str, Any]
) -> CheckedPipeline:
    from airflow_kafka_offsets.readings.drift import CheckedPipeline, pipeline_drift

    try:
        checkpoint = open_checkpoint(
            str(pipeline.checkpoint_location), pipeline.checkpoint_conn_id, option="--pipelines"
        )
        groups = GroupSelection.parse(pipeline.group_id, pipeline.topics)
        reports = pipeline_drift(client_of(pipeline.kafka_config_id), checkpoint, groups, **how)
    except KafkaOffsetsError as error:
        return CheckedPipeline(pipeline, error=str(error), retriable=error.retriable)
    return CheckedPipeline(pipeline, tuple(reports))


def _lines(checked: Sequence[CheckedPipeline]) -> Iterable[str]:
    """Return a line for each pipeline without drift, a table for each one with drift, and the totals."""
    for one in checked:
        for report in one.reports:
            yield report.table() if report.drifted or report.warnings else report.summary()
    drifted = sum(one.drifted for one in checked)
    failed = sum(one.error is not None for one in checked)
    yield f"{plural(len(checked), 'pipeline')}: {drifted} drifted, {failed} could not be checked"
