"""What can be asked and done from a terminal about consumer groups?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
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
    scenario_names_partitions,
    scenario_of,
    scenario_options,
)
from airflow_kafka_offsets.cli.options import (
    REFUSED,
    broker_options,
    open_client,
    output_option,
    print_json,
    print_rows,
    read_given,
    topics_option,
)
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.checkpoint_plan import read_checkpoint_receipt
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.names import check_group
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.text import kind_of, printable
from airflow_kafka_offsets.model.topics import TopicScope


@click.group()
def group() -> None:
    """Consumer groups."""


@group.command("lag")
@click.argument("group_id", metavar="GROUP")
@topics_option
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Up to the high watermark, or up to the last stable offset.",
)
@broker_options
@output_option
def group_lag(
    group_id: str, topics: Sequence[str] | None, isolation_level: Any, output: str, **broker: Any
) -> None:
    """Show how far GROUP is behind, partition by partition."""
    from airflow_kafka_offsets.kafka.positions import group_positions, lag_of

    check_group(group_id, "GROUP")
    with open_client(**broker) as client:
        positions = group_positions(client, group_id, TopicScope.parse(topics))
        lag = lag_of(client, group_id, positions, isolation_level=isolation_level)
    if output == "json":
        print_json({"group_id": group_id, **lag.as_json()})
    else:
        click.echo(lag.table())


@group.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state, such as Empty; may be repeated."
)
@broker_options
@output_option
def group_list(states: Sequence[str], output: str, **broker: Any) -> None:
    """List the groups of the cluster."""
    with open_client(**broker) as client:
        listings = [listing.as_json() for listing in client.list_groups(states or None)]
    if output == "json":
        print_json({"groups": listings})
    else:
        print_rows([("GROUP", "STATE", "TYPE"), *((g["group_id"], g["state"], g["type"]) for g in listings)])


@group.command("describe")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@broker_options
@output_option
def group_describe(group_ids: Sequence[str], output: str, **broker: Any) -> None:
    """Show the state and the members of each GROUP."""
    with open_client(**broker) as client:
        described = [description.as_json() for description in client.describe_groups(group_ids).values()]
    if output == "json":
        print_json({"groups": described})
        return
    for description in described:
        members = description["members"]
        name = printable(description["group_id"])
        click.echo(f"{name}: {description['state']}, {len(members)} members")
        if members:
            rows = [("MEMBER", "CLIENT", "HOST", "PARTITIONS")]
            rows += [
                (member["member_id"], member["client_id"], member["host"], " ".join(member["partitions"]))
                for member in members
            ]
            print_rows(rows)


@group.command("reset")
@click.argument("group_ids", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group of the cluster.")
@topics_option
@click.option("--all-topics", is_flag=True, help="All partitions that the group has commits for.")
@scenario_options
@out_of_range_option()
@click.option(
    "--on-no-commit",
    type=click.Choice(["fail", "earliest", "latest", "skip"]),
    default="fail",
    show_default=True,
    help="Where a partition without a commit stands, for --shift-by and --to-current.",
)
@execute_options
@click.option("--export", is_flag=True, help="Print the planned offsets as Kafka's CSV, and no table.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="First write the offsets that will be overwritten to this file, as Kafka's CSV.",
)
@click.option(
    "--checkpoint",
    "location",
    metavar="URI",
    help="Move this Spark checkpoint along; GROUP may then be JSON as {topic: group}.",
)
@checkpoint_options
@broker_options
@output_option
def group_reset(
    group_ids: Sequence[str],
    all_groups: bool,
    topics: Sequence[str] | None,
    all_topics: bool,
    on_out_of_range: Any,
    on_no_commit: Any,
    export: bool,
    save: Path | None,
    location: str | None,
    quiet_period: float,
    output: str,
    **options: Any,
) -> None:
    """Move the offsets of each GROUP. Without --execute it shows what it would do and changes nothing."""
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.moves.group_reset import plan_resets
    from airflow_kafka_offsets.moves.reset import plan_reset

    scenario = scenario_of({name: options.pop(name) for name in SCENARIO_OPTIONS})
    execute, policy = is_executed(options), checkpoint_policy(options)
    if bool(group_ids) == all_groups:
        raise UsageError("give the groups to move, or --all-groups")
    if bool(topics) and all_topics:
        raise UsageError("--topic and --all-topics contradict each other: give one of them")
    if not (topics or all_topics or location or scenario_names_partitions(scenario)):
        raise UsageError("give the topics to move with --topic, or --all-topics")
    if location and len(group_ids) != 1:
        raise UsageError('--checkpoint takes one GROUP, or several as one JSON text {"topic": "group"}')
    scope = TopicScope.parse(topics)
    for name in () if location else group_ids:
        check_group(name, "GROUP")
    policies: dict[str, Any] = {
        "now": datetime.now(tz=timezone.utc),
        "on_out_of_range": on_out_of_range,
        "on_no_commit": on_no_commit,
    }
    checkpoint = SparkCheckpoint(location) if location else None
    with open_client(**options) as client:
        if checkpoint is not None:
            named = Groups.parse(group_ids[0]).within(scope)
            plan = plan_reset(client, checkpoint, named, scenario, policy=policy, **policies)
        else:
            names = [found.group_id for found in client.list_groups()] if all_groups else group_ids
            plan = PipelinePlan(plan_resets(client, dict.fromkeys(names, scope), scenario, **policies))
        finish(
            plan,
            "group reset",
            client=client,
            checkpoint=checkpoint,
            execute=execute,
            output=output,
            quiet_period=quiet_period,
            save=save,
            export=export,
        )


@group.command("restore")
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--receipt",
    "receipt_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the receipt of the reset, as --output json printed it or XCom has it.",
)
@click.option("--from-file", metavar="FILE", help="Kafka's CSV with the offsets to put back.")
@click.option("--checkpoint", "location", metavar="URI", help="Move this Spark checkpoint back as well.")
@click.option(
    "--archive", metavar="NAME", help="With --checkpoint: take back this move of both, also one half done."
)
@out_of_range_option("For an offset that is outside the log by now.")
@click.option(
    "--on-no-commit",
    type=click.Choice(["skip", "earliest"]),
    default="skip",
    show_default=True,
    help="For a partition that had no commit: left where it is, or moved to its log start.",
)
@execute_options
@checkpoint_options
@broker_options
@output_option
def group_restore(
    group_id: str,
    receipt_file: Path | None,
    from_file: str | None,
    location: str | None,
    archive: str | None,
    on_out_of_range: Any,
    on_no_commit: Any,
    quiet_period: float,
    output: str,
    **options: Any,
) -> None:
    """
    Put back the offsets of GROUP that a reset has overwritten.

    GROUP may be JSON as {topic: group}. Without --execute it shows what it would do and changes nothing.
    """
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.moves.restore import (
        plan_restore_archive,
        plan_restore_file,
        plan_restore_receipt,
    )

    if [bool(receipt_file), bool(from_file), bool(archive)].count(True) != 1:
        raise UsageError("give --receipt, --from-file, or --archive: one of them")
    if archive and not location:
        raise UsageError(
            "--archive names a move of a checkpoint: give its location with --checkpoint as well"
        )
    execute, policy = is_executed(options), checkpoint_policy(options)
    checkpoint = SparkCheckpoint(location) if location else None
    with open_client(**options) as client:
        if receipt_file is not None:
            value = load_json(read_given(receipt_file), str(receipt_file), show=kind_of)
            # Here, where an error text does not show what is in the file.
            read_receipt(value, show=kind_of)
            read_checkpoint_receipt(value, show=kind_of)
            plan = plan_restore_receipt(
                client,
                value,
                checkpoint,
                Groups.parse(group_id),
                on_out_of_range=on_out_of_range,
                on_no_commit=on_no_commit,
                policy=policy,
            )
        elif archive and checkpoint is not None:
            plan = plan_restore_archive(
                client,
                archive,
                checkpoint,
                Groups.parse(group_id),
                on_out_of_range=on_out_of_range,
                on_no_commit=on_no_commit,
                policy=policy,
            )
        else:
            plan = plan_restore_file(
                client,
                str(from_file),
                checkpoint,
                Groups.parse(group_id),
                on_out_of_range=on_out_of_range,
                policy=policy,
            )
        finish(
            plan,
            "group restore",
            client=client,
            checkpoint=checkpoint,
            execute=execute,
            output=output,
            quiet_period=quiet_period,
        )


@group.command("delete")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@broker_options
@output_option
def group_delete(group_ids: Sequence[str], output: str, **broker: Any) -> None:
    """Delete each GROUP with all its offsets, and say of each whether it was."""
    with open_client(**broker) as client:
        results = client.delete_groups(group_ids)
    if output == "json":
        groups = [{"group_id": name, "deleted": why is None, "error": why} for name, why in results.items()]
        print_json({"groups": groups})
    else:
        for name, why in results.items():
            click.echo(f"{printable(name)}: {why or 'deleted'}")
    if any(results.values()):
        raise SystemExit(REFUSED)
