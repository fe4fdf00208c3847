"""Commands for consumer groups: list, describe, lag and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.cli.connections import BrokerOptions, admin_client_options, broker_options
from airflow_kafka_offsets.cli.execution import (
    REFUSED,
    Execution,
    execution_options,
    print_error,
    print_result,
    save_offsets,
)
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    group_argument,
    isolation_option,
    no_group_error,
    output_option,
    refuse_unused,
    save_option,
    topics_option,
)
from airflow_kafka_offsets.cli.watch import CommandReading, show_repeatedly, watch_option
from airflow_kafka_offsets.errors import BrokerError, NoCommitError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import IsolationLevel, Positions, committed_offsets
from airflow_kafka_offsets.model.receipt import RECEIPT_VERSION
from airflow_kafka_offsets.model.table import align_rows, offset_cell
from airflow_kafka_offsets.model.text import escape_controls, plural, shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_error

Keep = Callable[[Mapping[str, Positions]], object]
"""Saves the offsets of groups before they are deleted."""


@click.group(cls=CommandGroup, elsewhere=dict.fromkeys(("commit", "reset", "restore"), "group_moves"))
def group() -> None:
    """Show and move consumer groups."""


@group.command("lag")
@click.argument("group_ids", metavar="[GROUP]...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups of the cluster, one line for each.")
@topics_option
@isolation_option
@click.option("--headroom", is_flag=True, help="Also time until retention deletes unread records.")
@watch_option
@broker_options
@output_option
def group_lag(
    group_ids: Sequence[str],
    all_groups: bool,
    topics: Sequence[str] | None,
    isolation_level: Any,
    headroom: bool,
    watch: float | None,
    broker: BrokerOptions,
    output: str,
) -> None:
    """
    Show the lag of GROUP in records, for each partition.

    Of several groups, it shows one line for each.
    """
    if bool(group_ids) == all_groups:
        raise UsageError("give the GROUP to measure, several groups, or --all-groups")
    if len(group_ids) != 1:
        refuse_unused("with several groups", "topics", "headroom")
    names = [parse_group(name) for name in group_ids]
    client = broker.open_client(limited=watch is None)

    def read() -> CommandReading:
        if len(names) == 1:
            return _lag_of_one(client, names[0], TopicScope.parse(topics), isolation_level, headroom)
        return _lags_of_many(client, names or None, isolation_level)

    show_repeatedly(read, output, watch)


def _lag_of_one(
    client: OffsetsClient, name: str, scope: TopicScope, isolation_level: IsolationLevel, headroom: bool
) -> CommandReading:
    from airflow_kafka_offsets.readings.positions import group_positions, measure_lag, refuse_no_commit

    positions = group_positions(client, name, scope)
    # This also refuses missing partitions.
    lag = measure_lag(client, name, positions, isolation_level=isolation_level, headroom=headroom)
    try:
        refuse_no_commit(name, positions)
    except NoCommitError:
        # Like Kafka's tool: a group with members is shown, and one that does not exist is an error.
        if not client.describe_groups([name])[name].members:
            raise
    return CommandReading(lambda: {"version": 1, "group_id": name, **_lag_json(lag)}, lambda: [lag.table()])


def _lag_json(lag: Lag) -> dict[str, Any]:
    value = lag.as_json()
    if all(row.lag is None for row in lag.partitions):  # without commits there is no lag, which is not lag 0
        value |= dict.fromkeys(("total_lag", "max_partition_lag", "lost"))
    return value


def _lags_of_many(
    client: OffsetsClient, names: Sequence[str] | None, isolation_level: IsolationLevel
) -> CommandReading:
    from airflow_kafka_offsets.readings.positions import measure_group_lags

    lags = measure_group_lags(client, names, isolation_level=isolation_level)
    if not lags:
        raise no_group_error()
    rows: list[tuple[str, ...]] = [("GROUP", "PARTITIONS", "LAG", "MAX-PARTITION-LAG", "LOST")]
    errors: list[str] = []
    for name, lag in lags.items():
        if isinstance(lag, Lag):
            counts = (lag.total, lag.max_partition_lag, lag.lost) if lag.partitions else (None, None, None)
            rows.append((escape_controls(name), str(len(lag.partitions)), *map(offset_cell, counts)))
        else:
            errors.append(f"{escape_controls(name)}: {lag}")

    def value() -> dict[str, Any]:
        found = {
            name: _lag_json(lag) if isinstance(lag, Lag) else {"error": str(lag)}
            for name, lag in lags.items()
        }
        return {"version": 1, "groups": [{"group_id": name, **its} for name, its in found.items()]}

    return CommandReading(value, lambda: [*align_rows(rows), *errors], failed=bool(errors))


@group.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state, such as Empty; may be repeated."
)
@admin_client_options
@output_option
def group_list(states: Sequence[str], output: str, client: OffsetsClient) -> None:
    """List the groups of the cluster."""
    found = client.list_groups(states or None)
    rows = [("GROUP", "STATE", "TYPE"), *((each.group_id, each.state, each.type) for each in found)]
    print_result(output, {"groups": [each.as_json() for each in found]}, align_rows(rows))
    if not (found or states):
        click.echo("There is no group that this user may see.", err=True)


@group.command("describe")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@admin_client_options
@output_option
def group_describe(group_ids: Sequence[str], output: str, client: OffsetsClient) -> None:
    """Show the state and the members of each GROUP. Exit 1 if one is not a consumer group."""
    groups = client.describe_groups(group_ids).values()
    described = [description.as_json() for description in groups]
    lines = []
    for found, other in zip(described, [group.kind_refusal for group in groups], strict=True):
        members = found["members"]
        name = escape_controls(found["group_id"])
        lines.append(
            escape_controls(other) if other else f"{name}: {found['state']}, {plural(len(members), 'member')}"
        )
        rows = [(m["member_id"], m["client_id"], m["host"], " ".join(m["partitions"])) for m in members]
        lines += align_rows([("MEMBER", "CLIENT", "HOST", "PARTITIONS"), *rows]) if rows else []
    print_result(output, {"groups": described}, lines)
    if any(group.kind_refusal for group in groups):
        raise SystemExit(REFUSED)


@group.command("delete-offsets")
@group_argument
@topics_option
@save_option
@execution_options
@admin_client_options
def group_delete_offsets(
    group_id: str,
    topics: Sequence[str] | None,
    save: Path | None,
    execution: Execution,
    client: OffsetsClient,
) -> None:
    """
    Delete the offsets of GROUP in topics it no longer reads.

    Its other offsets stay. Without --execute it shows what it would delete and changes nothing.
    """
    from airflow_kafka_offsets.moves.deletion import plan_offset_deletion
    from airflow_kafka_offsets.moves.write import delete_offsets

    name = parse_group(group_id)
    if topics is None:
        raise parameter_error(
            "topics", " is missing: name the topics; 'group delete' deletes all offsets of a group"
        )
    before = committed_offsets(plan_offset_deletion(client, name, TopicScope.parse(topics)))
    if not before:
        raise PlanRefusedError(f"group {name!r} has no committed offsets of {', '.join(topics)}")
    lag = Lag.measure(name, before, client.log_ranges(before))
    execution.print_lines(lag.table())

    def delete(keep: Keep) -> tuple[dict[str, str | None], list[str]]:
        deleted = delete_offsets(client, name, before, keep)
        errors = [f"{tp}: {error}" for tp, error in deleted.items() if error is not None]
        lines = [f"{len(deleted) - len(errors)} of {len(deleted)} offsets deleted"]
        return {name: "; ".join(errors) or None}, lines

    _delete(execution, save, {name: lag}, {name: before}, delete, "offsets were deleted")


@group.command("delete")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@save_option
@execution_options
@admin_client_options
def group_delete(
    group_ids: Sequence[str], save: Path | None, execution: Execution, client: OffsetsClient
) -> None:
    """
    Delete each GROUP with all its committed offsets.

    Without --execute the command shows its plan and changes nothing.
    """
    from airflow_kafka_offsets.moves.deletion import plan_deletion
    from airflow_kafka_offsets.moves.write import delete_groups

    before, refusals = plan_deletion(client, group_ids)
    lags = {name: Lag.measure(name, each, client.log_ranges(each)) for name, each in before.items()}
    execution.print_lines(*(f"Empty group {lag.table()}" for lag in lags.values()))
    if refusals:
        raise PlanRefusedError([*refusals.values()])

    def delete(keep: Keep) -> tuple[dict[str, str | None], list[str]]:
        errors = delete_groups(client, before, keep)
        return errors, [f"{escape_controls(name)}: deleted" for name, error in errors.items() if not error]

    _delete(execution, save, lags, before, delete, "groups were deleted")


def _delete(
    execution: Execution,
    save: Path | None,
    lags: Mapping[str, Lag],
    before: Mapping[str, Positions],
    delete: Callable[[Keep], tuple[dict[str, str | None], list[str]]],
    done: str,
) -> None:
    """
    Delete with --execute, and print the receipt; exit 1 after an error.

    :param delete: returns an error by group, and lines about what it has deleted.
    """
    keep = partial(save_offsets, save, execute=execution.execute)
    errors: dict[str, str | None] = {}
    lines: list[str] = []
    if execution.execute:
        try:
            errors, lines = delete(keep)
        except (BrokerError, KeyboardInterrupt) as failed:
            # A part may be deleted, so the receipt is needed.
            errors = dict.fromkeys(before, str(failed) or "stopped: it may be deleted in part")
    else:
        keep(before)
    receipts = [
        {
            "group_id": name,
            "before": offsets_json(before[name]),
            "total_lag": lag.total,
            "plan_only": not execution.execute,
            "deleted": execution.execute and errors[name] is None,
            "error": errors.get(name),
        }
        for name, lag in lags.items()
    ]
    for name, error in errors.items():
        if error:
            print_error(f"Error: group {shorten(name)}: {escape_controls(error)}")
    execution.print_receipt({"version": RECEIPT_VERSION, "groups": receipts}, done, lines)
    if any(errors.values()):
        raise SystemExit(REFUSED)
