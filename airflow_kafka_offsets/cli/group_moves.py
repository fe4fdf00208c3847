"""Commands that move consumer groups: commit, reset and restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.connections import admin_client_options, checkpoint_option
from airflow_kafka_offsets.cli.execution import Execution, execution_options, move_options, reset_options
from airflow_kafka_offsets.cli.options import (
    StrictCommand,
    allow_stale_option,
    choice_option,
    combine_options,
    group_argument,
    groups_argument,
    new_cluster_option,
    no_group_error,
    out_of_range_option,
    refuse_unused,
    save_option,
    topics_option,
)
from airflow_kafka_offsets.cli.saved_plans import (
    apply_saved_plan,
    max_age_option,
    plan_option,
    refuse_with_plan,
    save_plan_option,
    save_to_file,
)
from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.checkpoint_policy import POLICY
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.groups import GroupIds, GroupSelection
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.parameters import RestoreMissingCommitPolicy, exactly_one
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.text import describe_type, escape_controls, join_first
from airflow_kafka_offsets.model.topics import TopicScope

CHECKPOINT_OPTIONS = (*POLICY, "quiet_period")
"""Parameters of :data:`move_options` that only affect a checkpoint."""


@click.command(cls=StrictCommand)
@groups_argument
@checkpoint_option("The Spark checkpoint whose newest committed batch is committed.", required=True)
@out_of_range_option
@new_cluster_option
@click.option("--allow-rewind", is_flag=True, help="Also commit offsets before the committed ones.")
@click.option("--allow-new-query", is_flag=True, help="Use a group that has followed another query.")
@execution_options
@admin_client_options
def commit(
    groups: GroupSelection,
    checkpoint: SparkCheckpoint,
    execution: Execution,
    client: OffsetsClient,
    **policies: Any,
) -> None:
    """
    Commit the end of a checkpoint's newest finished batch.

    This is what CommitOffsetsOperator does. GROUP may be JSON of the form {topic: group}. Without --execute
    the command shows its plan and changes nothing.
    """
    from airflow_kafka_offsets.moves.apply import apply_position
    from airflow_kafka_offsets.moves.checkpoint_commit import (
        plan_checkpoint_commit,
        retry_while_checkpoint_moves,
    )

    # Between plan and commit the query may finish a batch, or a user may move the checkpoint: then plan again
    # from the newest batch.
    for attempt in retry_while_checkpoint_moves():
        with attempt:
            plan, metadata, known_moves = plan_checkpoint_commit(
                client, checkpoint, groups, execution.metadata, **policies
            )
            apply = partial(apply_position, client, metadata=metadata, known_moves=known_moves)
            execution.finish_plan(plan, apply, client=client)


@click.command(cls=StrictCommand)
@click.argument("group_ids", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups of the cluster.")
@topics_option
@click.option("--all-topics", is_flag=True, help="All partitions in which the group has commits.")
@reset_options
@click.option("--export", is_flag=True, help="Print the planned offsets as Kafka's CSV, not as a table.")
@save_option
@save_plan_option
@plan_option
@max_age_option
@checkpoint_option("Move this Spark checkpoint too; GROUP may then be JSON of the form {topic: group}.")
@admin_client_options
def reset(
    group_ids: Sequence[str],
    all_groups: bool,
    topics: Sequence[str] | None,
    all_topics: bool,
    place: Place | None,
    execution: Execution,
    export: bool,
    save: Path | None,
    save_plan: Path | None,
    plan_file: str | None,
    max_age: float,
    checkpoint: SparkCheckpoint | None,
    client: OffsetsClient,
    allow_new_cluster: bool,
    **policies: Any,
) -> None:
    """Move the offsets of each GROUP. Without --execute the command shows its plan and changes nothing."""
    if place is None:
        from airflow_kafka_offsets.moves.saved import plan_saved

        if group_ids:
            raise UsageError("--plan names the groups itself: leave GROUP out")
        refuse_with_plan("uri", "checkpoint_conn_id", "bootstrap_server", "command_config", "kafka_config_id")
        plan_again = partial(plan_saved, metadata=execution.metadata)
        apply_saved_plan(execution, str(plan_file), client, max_age, plan_again, checkpoint)
        return
    refuse_unused("without --plan", "max_age")
    if bool(group_ids) == all_groups:
        raise UsageError("give the groups to move, or --all-groups")
    if topics and all_topics:
        raise UsageError("--topic and --all-topics contradict each other: give only one")
    named = {"with_topics": bool(topics or all_topics), "with_checkpoint": bool(checkpoint)}
    _check_selection(place, group_ids, **named)
    if export and execution.output == "json":
        raise UsageError("--export prints CSV, and --output json contradicts it: give only one")
    if save_plan and (export or save):
        raise UsageError("--save-plan replaces --export and --save: leave these out")
    # Once for all groups, so that a duration before now means the same moment for each.
    policies |= {"now": datetime.now(tz=timezone.utc)}
    group_id: GroupIds | None = group_ids[0] if len(group_ids) == 1 else None
    if checkpoint:
        from airflow_kafka_offsets.moves.reset import plan_reset

        groups = GroupSelection.parse(group_ids[0], topics)
        group_id = groups.group_id
        policies |= {"policy": execution.policy, "allow_new_cluster": allow_new_cluster}
        plan = plan_reset(client, checkpoint, groups, place, **policies)
    else:
        from airflow_kafka_offsets.moves.groups import plan_group_resets
        from airflow_kafka_offsets.readings.log_checks import LogCheck

        names = group_ids or [found.group_id for found in client.list_groups()]
        if not names:
            raise no_group_error()
        scopes = dict.fromkeys(map(parse_group, names), TopicScope.parse(topics))
        policies |= {"log_check": LogCheck(allow_new_cluster)}
        plan = PipelinePlan(plan_group_resets(client, scopes, place, **policies))
    if save_plan is None:
        execution.finish_pipeline_plan(plan, client, checkpoint, save=save, export=export)
        return
    save_to_file(
        execution, plan, client, checkpoint, save_plan, group_id=group_id, allow_new_cluster=allow_new_cluster
    )


def _check_selection(
    place: Place, group_ids: Sequence[str], *, with_topics: bool, with_checkpoint: bool
) -> None:
    """Refuse options of ``group reset`` that name nothing to move, or that nothing would read."""
    if place.batch_id is not None and not with_checkpoint:
        raise UsageError("--to-batch is a batch of a Spark checkpoint: give its --checkpoint as well")
    if place.traits.names_partitions:
        refuse_unused("with offsets that name their partitions", "all_topics")
    if not (with_topics or with_checkpoint or place.traits.names_partitions):
        raise UsageError("give the topics to move with --topic, or --all-topics")
    if with_checkpoint and len(group_ids) != 1:
        raise UsageError('--checkpoint takes one GROUP, or several as one JSON text {"topic": "group"}')
    unused = () if place.traits.uses_on_no_commit(with_checkpoint=with_checkpoint) else ("on_no_commit",)
    if with_checkpoint:
        refuse_unused(
            "with --checkpoint, which names the partitions and where they start", "all_topics", *unused
        )
    else:
        if any("".join(name.split()).startswith('{"') for name in group_ids):
            raise UsageError(
                "GROUP as JSON is for the topics of a checkpoint: give --checkpoint, or plain names"
            )
        refuse_unused("without --checkpoint", *CHECKPOINT_OPTIONS)
        refuse_unused("where no commit is needed", *unused)


@click.command(cls=StrictCommand)
@combine_options("groups", GroupSelection.parse, group_argument)
@click.option("--receipt", metavar="FILE", help="A receipt, as --output json prints it or from XCom.")
@click.option("--from-file", metavar="FILE", help="Kafka's CSV with the offsets to restore.")
@checkpoint_option("Restore this Spark checkpoint too.")
@click.option(
    "--archive", metavar="NAME", help="With --checkpoint: take this move of both back, even a partial one."
)
@allow_stale_option
@out_of_range_option
@new_cluster_option
@choice_option(
    "--on-no-commit",
    RestoreMissingCommitPolicy,
    "skip",
    "For a partition that had no commit: leave it unchanged, or move it to its log start.",
)
@move_options
@admin_client_options
def restore(
    groups: GroupSelection,
    receipt: str | None,
    from_file: str | None,
    checkpoint: SparkCheckpoint | None,
    archive: str | None,
    allow_stale: bool,
    on_no_commit: Any,
    execution: Execution,
    client: OffsetsClient,
    **policies: Any,
) -> None:
    """
    Take back a reset or the deletion of GROUP.

    GROUP may be JSON of the form {topic: group}. Without --execute the command shows its plan and changes
    nothing.
    """
    from airflow_kafka_offsets.moves import restore as restores

    exactly_one({"receipt": receipt, "from_file": from_file, "archive": archive})
    if not checkpoint:
        refuse_unused("without --checkpoint", *CHECKPOINT_OPTIONS)
    policies["policy"] = execution.policy
    if from_file:
        refuse_unused("with --from-file, which has no partition without a commit", "on_no_commit")
        refuse_unused("with --from-file, which belongs to no move", "allow_stale")
        plan = restores.plan_restore_file(client, from_file, checkpoint, groups, **policies)
    else:
        policies |= {"on_no_commit": on_no_commit, "allow_stale": allow_stale}
        if receipt:
            read = _read_receipt(receipt, groups)
            plan = restores.plan_restore_receipt(client, read, checkpoint, groups, **policies)
        elif archive and checkpoint:
            plan = restores.plan_restore_archive(client, archive, checkpoint, groups, **policies)
        else:
            raise UsageError(
                "--archive names a move of a checkpoint: give its location with --checkpoint as well"
            )
    # If everything is already at its earlier position, the restore has its intended result.
    execution.finish_pipeline_plan(replace(plan, may_be_empty=True), client, checkpoint)


def _read_receipt(uri: str, groups: GroupSelection) -> Receipt:
    """
    Read a receipt from a file; error texts never contain the file's content.

    :param groups: groups that moved without a checkpoint need not be restored together: if the receipt has
        others too, these are left out.
    """
    from airflow_kafka_offsets.storage import read_named_text

    form = "a receipt, as --output json prints it"
    text = read_named_text(uri, "--receipt", f"give {form}")
    value = load_json(text, f"--receipt {uri}", form, describe=describe_type)
    try:
        receipt = Receipt.parse(value, describe=describe_type)
    except OffsetsFormatError as error:
        raise OffsetsFormatError(f"--receipt {uri}: {error}") from None
    found = {group.group_id for group in receipt.groups}
    if not found:
        raise UsageError(
            f"--receipt {uri}: is of a checkpoint alone, and of no group: take its move back with "
            "'checkpoint restore'"
        )
    named = found.intersection(groups.group_ids)
    if receipt.checkpoint is not None or named in (set(), found):
        return receipt
    left_out = join_first(sorted(found - named), show=escape_controls)
    click.echo(f"Left out of the receipt: group {left_out}", err=True)
    return replace(receipt, groups=tuple(each for each in receipt.groups if each.group_id in named))
