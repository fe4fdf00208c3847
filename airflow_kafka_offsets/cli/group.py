"""What can be asked and done from a terminal about consumer groups?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_kafka_offsets.cli.options import (
    REFUSED,
    broker_options,
    open_client,
    output_option,
    print_json,
    print_rows,
)
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import format_csv
from airflow_kafka_offsets.model.scope import TopicScope

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.scenarios import Scenario


@click.group()
def group() -> None:
    """Consumer groups."""


@group.command("lag")
@click.argument("group_id", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="Only these; may be repeated.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Up to the high watermark, or up to the last stable offset.",
)
@broker_options
@output_option
def group_lag(group_id: str, topics: Sequence[str], isolation_level: Any, output: str, **broker: Any) -> None:
    """Show how far GROUP is behind, partition by partition."""
    from airflow_kafka_offsets.kafka.positions import group_positions, lag_of

    with open_client(**broker) as client:
        positions = group_positions(client, group_id, TopicScope.parse(list(topics)))
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
        click.echo(f"{description['group_id']}: {description['state']}, {len(members)} members")
        if members:
            rows = [("MEMBER", "CLIENT", "HOST", "PARTITIONS")]
            rows += [
                (member["member_id"], member["client_id"], member["host"], " ".join(member["partitions"]))
                for member in members
            ]
            print_rows(rows)


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
    from airflow_kafka_offsets.kafka.resets import parse_scenario
    from airflow_kafka_offsets.model.scenarios import exactly_one

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


@group.command("reset")
@click.argument("group_ids", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group of the cluster.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="Only these; may be repeated.")
@click.option("--all-topics", is_flag=True, help="All partitions that the group has commits for.")
@scenario_options
@click.option(
    "--on-out-of-range",
    type=click.Choice(["fail", "clamp", "skip"]),
    default="fail",
    show_default=True,
    help="For an offset outside the log or a time in the future.",
)
@click.option(
    "--on-no-commit",
    type=click.Choice(["fail", "earliest", "latest", "skip"]),
    default="fail",
    show_default=True,
    help="Where a partition without a commit stands, for --shift-by and --to-current.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; so does giving neither.")
@click.option("--execute", is_flag=True, help="Change the offsets.")
@click.option("--export", is_flag=True, help="Print the planned offsets as Kafka's CSV, and no table.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="First write the offsets that will be overwritten to this file, as Kafka's CSV.",
)
@broker_options
@output_option
def group_reset(
    group_ids: Sequence[str],
    all_groups: bool,
    topics: Sequence[str],
    all_topics: bool,
    on_out_of_range: Any,
    on_no_commit: Any,
    dry_run: bool,
    execute: bool,
    export: bool,
    save: Path | None,
    output: str,
    **options: Any,
) -> None:
    """Move the offsets of each GROUP. Without --execute it shows what it would do and changes nothing."""
    from airflow_kafka_offsets.kafka.apply import apply_plans
    from airflow_kafka_offsets.kafka.resets import plan_resets
    from airflow_kafka_offsets.model.metadata import CommitMetadata
    from airflow_kafka_offsets.model.plan import check_plans, receipt

    scenario = scenario_of({name: options.pop(name) for name in SCENARIO_OPTIONS})
    if dry_run and execute:
        raise UsageError("--dry-run and --execute contradict each other: give one of them")
    if bool(group_ids) == all_groups:
        raise UsageError("give the groups to move, or --all-groups")
    if bool(topics) and all_topics:
        raise UsageError("--topic and --all-topics contradict each other: give one of them")
    if not (topics or all_topics or scenario_names_partitions(scenario)):
        raise UsageError("give the topics to move with --topic, or --all-topics")
    with open_client(**options) as client:
        names = [found.group_id for found in client.list_groups()] if all_groups else group_ids
        plans = plan_resets(
            client,
            dict.fromkeys(names, TopicScope.parse(list(topics))),
            scenario,
            now=datetime.now(tz=timezone.utc),
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
        )
        if export:
            click.echo(format_csv({plan.group_id: plan.after for plan in plans}), nl=False)
        elif output == "table":
            for plan in plans:
                click.echo(plan.table())
        check_plans(plans)
        if save:
            save.write_text(format_csv({plan.group_id: plan.overwritten for plan in plans}), encoding="utf-8")
        if execute:
            apply_plans(client, plans, CommitMetadata(tool="airflow-kafka-offsets group reset"))
    if output == "json" and not export:
        print_json(receipt(plans, plan_only=not execute, verified=execute))
    if not execute:
        click.echo("Nothing was changed: give --execute to do it.", err=True)


def scenario_names_partitions(scenario: Scenario) -> bool:
    """Whether a scenario says by itself which partitions it moves."""
    from airflow_kafka_offsets.model.scenarios import FromFile, ToOffset

    return isinstance(scenario, FromFile) or (
        isinstance(scenario, ToOffset) and isinstance(scenario.to, Mapping)
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
            click.echo(f"{name}: {why or 'deleted'}")
    if any(results.values()):
        raise SystemExit(REFUSED)
