"""Commands for Spark checkpoints: show, seek, truncate and restore; history has a separate module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.connections import admin_client_options, checkpoint_argument
from airflow_kafka_offsets.cli.execution import (
    Execution,
    move_options,
    print_result,
    reset_options,
    truncate_options,
)
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    allow_stale_option,
    output_option,
    refuse_unused,
    topics_option,
)
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope


@click.group(cls=CommandGroup, elsewhere={"history": "history"})
def checkpoint() -> None:
    """Show and move Spark checkpoints."""


@checkpoint.command("show")
@checkpoint_argument
@output_option
def checkpoint_show(checkpoint: SparkCheckpoint, output: str) -> None:
    """Show the newest committed batch of the checkpoint at URI."""
    state = checkpoint.read()
    rows = [("SOURCE", "TOPIC", "PARTITION", "OFFSET")]
    for source in state.sources:
        if source.offsets is None:
            rows.append((source.source, "(not Kafka, or no offset yet)", "-", "-"))
        for tp, end in sorted((source.offsets or {}).items()):
            rows.append((source.source, tp.topic, str(tp.partition), str(end)))
    lines = [
        f"query    {state.query_id}",
        f"batch    {'none has finished' if state.batch_id is None else state.batch_id}",
        f"pending  {'none' if state.pending_batch_id is None else state.pending_batch_id}",
        *align_rows(rows),
    ]
    print_result(output, state.as_json(), lines)


@checkpoint.command("seek")
@checkpoint_argument
@topics_option
@reset_options
@admin_client_options
def checkpoint_seek(
    checkpoint: SparkCheckpoint,
    topics: Sequence[str] | None,
    place: Place,
    execution: Execution,
    client: OffsetsClient,
    **policies: Any,
) -> None:
    """
    Let the query of the checkpoint at URI continue elsewhere.

    The query must be stopped. Groups do not move: "group reset --checkpoint" moves both. Without --execute
    the command shows its plan and changes nothing.
    """
    from airflow_kafka_offsets.moves.reset import plan_checkpoint_seek

    if not place.traits.uses_on_no_commit(with_checkpoint=True):
        refuse_unused("where no commit is needed", "on_no_commit")
    plan = plan_checkpoint_seek(
        client,
        checkpoint,
        place,
        scope=TopicScope.parse(topics),
        now=datetime.now(tz=timezone.utc),
        policy=execution.policy,
        **policies,
    )
    execution.finish_pipeline_plan(plan, client, checkpoint)


@checkpoint.command("truncate")
@checkpoint_argument
@click.option("--to-batch", type=click.IntRange(0), required=True, help="The batch that becomes the newest.")
@truncate_options
def checkpoint_truncate(checkpoint: SparkCheckpoint, to_batch: int, execution: Execution) -> None:
    """
    Remove all batches after one from the checkpoint at URI.

    The query runs them again under the same ids. This is exact, even for a query with state, but wrong for
    sinks that skip known ids: so --sink is required. The Spark application must have ended, not only the
    query. Without --execute the command shows its plan and changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate

    plan = PipelinePlan((), plan_truncate(checkpoint, to_batch, execution.policy))
    execution.finish_pipeline_plan(plan, None, checkpoint)


@checkpoint.command("restore")
@checkpoint_argument
@click.option(
    "--archive", help="The move to take back, by its archive. Default: the newest one not taken back yet."
)
@allow_stale_option
@move_options
def checkpoint_restore(
    checkpoint: SparkCheckpoint, archive: str | None, allow_stale: bool, execution: Execution
) -> None:
    """
    Take back a seek or truncate of the checkpoint at URI.

    If the query has run since, the checkpoint is moved to its offsets before the move. Groups do not move:
    see "group restore". Without --execute the command shows its plan and changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
    from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore
    from airflow_kafka_offsets.model.receipt import Receipt
    from airflow_kafka_offsets.moves.stale import with_stale_refusal

    moves = ArchivedMoves(checkpoint)
    kept = moves.find(archive)
    if groups := moves.group_offsets(kept)[1]:
        click.echo(
            f"Move {kept.name} is of group {', '.join(map(shorten, groups))} too, which stays where it is: "
            f"{moves.restore_command(kept.name)} moves both",
            err=True,
        )
    plan = with_stale_refusal(
        PipelinePlan((), plan_checkpoint_restore(checkpoint, kept.name, execution.policy)),
        Receipt((), kept),
        checkpoint=checkpoint,
        archive=kept,
        metadata=execution.metadata,
        allow_stale=allow_stale,
    )
    execution.finish_pipeline_plan(plan, None, checkpoint)
