"""Commands that move consumer groups: commit, reset and restore."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.execution import Execution, execution_options, move_options
from airflow_kafka_offsets.cli.options import (
    Broker,
    broker_options,
    checkpoint_option,
    choice_option,
    out_of_range_option,
    save_option,
    scenario_options,
    topics_option,
)
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.checkpoint_plan import read_checkpoint_receipt
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.offsets import load_json
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, RestoreMissingCommitPolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.reset_scenarios import FromFile, Scenario
from airflow_kafka_offsets.model.text import MAX_SIZE, kind_of, too_large
from airflow_kafka_offsets.model.topics import TopicScope

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


@click.command("commit")
@click.argument("group_id", metavar="GROUP")
@checkpoint_option("The Spark checkpoint, of which the newest committed batch is committed.", required=True)
@topics_option
@out_of_range_option
@click.option("--allow-rewind", is_flag=True, help="Commit also offsets that are before those of GROUP.")
@click.option("--allow-new-query", is_flag=True, help="Take over a group that another query followed.")
@execution_options
@broker_options
def group_commit(
    group_id: str,
    checkpoint: SparkCheckpoint,
    topics: Sequence[str] | None,
    execution: Execution,
    broker: Broker,
    **policies: Any,
) -> None:
    """
    Commit to GROUP what the newest committed batch of a checkpoint has read, as CommitOffsetsOperator does.

    GROUP may be JSON as {topic: group}. Without --execute it shows what it would do and changes nothing.
    """
    from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit, until_unmoved

    groups = Groups.parse(group_id, topics)
    with broker.open() as client:
        for attempt in until_unmoved():
            with attempt:
                position = plan_checkpoint_commit(client, checkpoint, groups, execution.metadata, **policies)
                execution.finish(
                    position.plan, client, metadata=position.metadata, known_moves=position.known_moves
                )


@click.command("reset")
@click.argument("group_ids", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group of the cluster.")
@topics_option
@click.option("--all-topics", is_flag=True, help="All partitions of the topics that the group has committed.")
@scenario_options
@out_of_range_option
@choice_option(
    "--on-no-commit",
    MissingCommitPolicy,
    "fail",
    "Where a partition without a commit starts, for --shift-by and --to-current.",
)
@move_options
@click.option("--export", is_flag=True, help="Print the planned offsets as Kafka's CSV, and no table.")
@save_option
@checkpoint_option("Move this Spark checkpoint along; GROUP may then be JSON as {topic: group}.")
@broker_options
def group_reset(
    group_ids: Sequence[str],
    all_groups: bool,
    topics: Sequence[str] | None,
    all_topics: bool,
    scenario: Scenario,
    on_out_of_range: Any,
    on_no_commit: Any,
    execution: Execution,
    export: bool,
    save: Path | None,
    checkpoint: SparkCheckpoint | None,
    broker: Broker,
) -> None:
    """Move the offsets of each GROUP. Without --execute it shows what it would do and changes nothing."""
    from airflow_kafka_offsets.moves.group_reset import plan_resets
    from airflow_kafka_offsets.moves.reset import plan_reset

    if bool(group_ids) == all_groups:
        raise UsageError("give the groups to move, or --all-groups")
    if bool(topics) and all_topics:
        raise UsageError("--topic and --all-topics contradict each other: give one of them")
    if not (topics or all_topics or checkpoint or scenario.named or isinstance(scenario, FromFile)):
        raise UsageError("give the topics to move with --topic, or --all-topics")
    if checkpoint and len(group_ids) != 1:
        raise UsageError('--checkpoint takes one GROUP, or several as one JSON text {"topic": "group"}')
    policies: dict[str, Any] = {
        "now": datetime.now(tz=timezone.utc),
        "on_out_of_range": on_out_of_range,
        "on_no_commit": on_no_commit,
    }
    groups = Groups.parse(group_ids[0], topics) if checkpoint else None
    names = () if groups else [check_group(name, "GROUP") for name in group_ids]
    with broker.open() as client:
        if checkpoint and groups:
            plan = plan_reset(client, checkpoint, groups, scenario, policy=execution.policy, **policies)
        else:
            names = [found.group_id for found in client.list_groups()] if all_groups else names
            scopes = dict.fromkeys(names, TopicScope.parse(topics))
            plan = PipelinePlan(plan_resets(client, scopes, scenario, **policies))
        execution.finish(plan, client, checkpoint, save=save, export=export)


@click.command("restore")
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--receipt",
    "receipt_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a receipt, as --output json prints it or XCom has it.",
)
@click.option("--from-file", metavar="FILE", help="Kafka's CSV with the offsets to restore.")
@checkpoint_option("Move this Spark checkpoint back as well.")
@click.option(
    "--archive", metavar="NAME", help="With --checkpoint: undo this move of both, also a partial one."
)
@out_of_range_option
@choice_option(
    "--on-no-commit",
    RestoreMissingCommitPolicy,
    "skip",
    "For a partition that had no commit: leave it where it is, or move it to its log start.",
)
@move_options
@broker_options
def group_restore(
    group_id: str,
    receipt_file: Path | None,
    from_file: str | None,
    checkpoint: SparkCheckpoint | None,
    archive: str | None,
    on_out_of_range: Any,
    on_no_commit: Any,
    execution: Execution,
    broker: Broker,
) -> None:
    """
    Restore the offsets of GROUP that a reset has overwritten, or that were deleted with the group.

    GROUP may be JSON as {topic: group}. Without --execute it shows what it would do and changes nothing.
    """
    from airflow_kafka_offsets.moves.restore import (
        plan_restore_archive,
        plan_restore_file,
        plan_restore_receipt,
    )

    if [bool(receipt_file), bool(from_file), bool(archive)].count(True) != 1:
        raise UsageError("give --receipt, --from-file, or --archive: one of them")
    if archive and not checkpoint:
        raise UsageError(
            "--archive names a move of a checkpoint: give its location with --checkpoint as well"
        )
    groups, receipt = Groups.parse(group_id), receipt_file and _read_receipt(receipt_file)
    policies: dict[str, Any] = {"on_out_of_range": on_out_of_range, "policy": execution.policy}
    with broker.open() as client:
        if from_file:
            plan = plan_restore_file(client, from_file, checkpoint, groups, **policies)
        elif archive and checkpoint:
            plan = plan_restore_archive(
                client, archive, checkpoint, groups, on_no_commit=on_no_commit, **policies
            )
        else:
            plan = plan_restore_receipt(
                client, receipt, checkpoint, groups, on_no_commit=on_no_commit, **policies
            )
        execution.finish(plan, client, checkpoint)


def _read_receipt(path: Path) -> Any:
    """
    Read a receipt from a file; no error text shows what is in the file.

    :raises UsageError: if the file cannot be read.
    """
    try:
        if (size := path.stat().st_size) > MAX_SIZE:
            raise UsageError(too_large(str(path), size))
        value = load_json(path.read_text(encoding="utf-8"), str(path), show=kind_of)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: is not UTF-8 text; expected a receipt as --output json prints it"
        ) from None
    read_receipt(value, show=kind_of)
    read_checkpoint_receipt(value, show=kind_of)
    return value
