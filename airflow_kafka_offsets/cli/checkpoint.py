"""What can be asked and done from a terminal about Spark checkpoints?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from airflow_kafka_offsets.cli.moves import (
    SCENARIO_OPTIONS,
    checkpoint_options,
    checkpoint_policy,
    execute_options,
    finish,
    is_executed,
    out_of_range_option,
    scenario_of,
    scenario_options,
)
from airflow_kafka_offsets.cli.options import (
    broker_options,
    open_client,
    output_option,
    print_json,
    print_rows,
    topics_option,
)
from airflow_kafka_offsets.model.topics import TopicScope


@click.group()
def checkpoint() -> None:
    """Spark checkpoints."""


@checkpoint.command("show")
@click.argument("uri")
@output_option
def checkpoint_show(uri: str, output: str) -> None:
    """Show the newest committed batch of the checkpoint at URI."""
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

    state = SparkCheckpoint(uri).read()
    if output == "json":
        print_json(state.as_json())
        return
    click.echo(f"query    {state.query_id}")
    click.echo(f"batch    {'none has finished' if state.batch_id is None else state.batch_id}")
    click.echo(f"pending  {'none' if state.pending_batch_id is None else state.pending_batch_id}")
    rows = [("SOURCE", "TOPIC", "PARTITION", "OFFSET")]
    for source in state.sources:
        if source.offsets is None:
            rows.append((source.source, "-" if source.kafka else "(not Kafka, or no offset yet)", "-", "-"))
        else:
            rows += [
                (source.source, tp.topic, str(tp.partition), str(end))
                for tp, end in sorted(source.offsets.items())
            ]
    print_rows(rows)


@checkpoint.command("seek")
@click.argument("uri")
@topics_option
@scenario_options
@out_of_range_option()
@execute_options
@checkpoint_options
@broker_options
@output_option
def checkpoint_seek(
    uri: str,
    topics: Sequence[str] | None,
    on_out_of_range: Any,
    quiet_period: float,
    output: str,
    **options: Any,
) -> None:
    """
    Let the query of the checkpoint at URI go on from other offsets.

    The query must be stopped. No group moves: for both at once see "group reset --checkpoint". Without --execute
    it shows what it would do and changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.moves.reset import plan_checkpoint_seek

    scenario = scenario_of({name: options.pop(name) for name in SCENARIO_OPTIONS})
    execute, policy = is_executed(options), checkpoint_policy(options)
    spark_checkpoint = SparkCheckpoint(uri)
    with open_client(**options) as client:
        plan = plan_checkpoint_seek(
            client,
            spark_checkpoint,
            scenario,
            scope=TopicScope.parse(topics),
            now=datetime.now(tz=timezone.utc),
            on_out_of_range=on_out_of_range,
            policy=policy,
        )
        finish(
            plan,
            "checkpoint seek",
            client=client,
            checkpoint=spark_checkpoint,
            execute=execute,
            output=output,
            quiet_period=quiet_period,
        )


@checkpoint.command("truncate")
@click.argument("uri")
@click.option("--to-batch", type=click.IntRange(0), required=True, help="The batch that is to be the newest.")
@execute_options
@checkpoint_options
@output_option
def checkpoint_truncate(uri: str, to_batch: int, quiet_period: float, output: str, **options: Any) -> None:
    """
    Remove all batches after one from the checkpoint at URI.

    The query plans them again under the same ids: exact also for a query that keeps state, and wrong for sinks
    that skip ids they have seen, so --sink is needed. The Spark application must have ended, not the query alone.
    Without --execute it changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan

    execute = is_executed(options)
    spark_checkpoint = SparkCheckpoint(uri)
    plan = PipelinePlan((), plan_truncate(spark_checkpoint, to_batch, checkpoint_policy(options)))
    finish(
        plan,
        "checkpoint truncate",
        client=None,
        checkpoint=spark_checkpoint,
        execute=execute,
        output=output,
        quiet_period=quiet_period,
    )


@checkpoint.command("undo")
@click.argument("uri")
@click.option("--archive", help="Which move to take back; by default the newest that was not.")
@execute_options
@checkpoint_options
@output_option
def checkpoint_undo(uri: str, archive: str | None, quiet_period: float, output: str, **options: Any) -> None:
    """
    Take back a seek or truncate of the checkpoint at URI.

    If the query has run since, the checkpoint is moved to the offsets that it had. No group moves: see
    "group restore". Without --execute it changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.plan_move import plan_undo
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan

    execute = is_executed(options)
    spark_checkpoint = SparkCheckpoint(uri)
    plan = PipelinePlan((), plan_undo(spark_checkpoint, archive, checkpoint_policy(options)))
    finish(
        plan,
        "checkpoint undo",
        client=None,
        checkpoint=spark_checkpoint,
        execute=execute,
        output=output,
        quiet_period=quiet_period,
    )
