"""What would a reset of consumer groups change, and may it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.kafka.groups import GroupDescription, name_members
from airflow_kafka_offsets.kafka.positions import group_positions
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.plan import OffsetPlan, OutOfRangePolicy
from airflow_kafka_offsets.model.scenarios import (
    Scenario,
    ToDatetime,
    ToOffset,
    offsets_at_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.scope import TopicScope

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_resets(
    client: OffsetsClient,
    scopes: Mapping[str, TopicScope],
    scenario: Scenario,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
) -> list[OffsetPlan]:
    """
    Plan the reset of groups, without changing anything.

    :param scopes: group -> the partitions to move; without named topics those it has commits for.
    :param scenario: where to.
    :param now: the present time; a later one to move to is out of range.
    :param on_out_of_range: what becomes of an offset outside the log, and of a time in the future.
    :return: a plan for each group, with its refusals.
    :raises UnknownTopicPartitionError: if a partition is not on the broker.
    """
    descriptions = client.describe_groups(scopes)
    plans = []
    for group_id, scope in scopes.items():
        before = _positions_to_move(client, group_id, scope, scenario)
        logs = client.log_ranges(before)
        targets, refusals, notes = _targets(client, scenario, before, logs, now, on_out_of_range)
        refusals = [*_active(descriptions[group_id]), *refusals]
        plan = OffsetPlan.make(
            group_id,
            targets,
            before,
            logs,
            source=_source(scenario),
            on_out_of_range=on_out_of_range,
            refusals=refusals,
            notes=notes,
        )
        plans.append(plan)
    return plans


def _positions_to_move(
    client: OffsetsClient, group_id: str, scope: TopicScope, scenario: Scenario
) -> Positions:
    if isinstance(scenario, ToOffset) and isinstance(scenario.to, Mapping):
        outside = [tp for tp in scenario.to if tp not in scope]
        if outside:
            raise OffsetsFormatError(
                f"to_offset names {summarize(outside)}, which topics= leaves out: name them in both or in neither"
            )
        committed = client.committed(group_id, scenario.to)
        return {tp: None if commit is None else commit.offset for tp, commit in committed.items()}
    positions = group_positions(client, group_id, scope)
    if scope.topics is None:
        # As in Kafka's tool, "all topics" are the partitions that have a committed offset.
        return {tp: offset for tp, offset in positions.items() if offset is not None}
    return positions


def _targets(
    client: OffsetsClient,
    scenario: Scenario,
    before: Positions,
    logs: Mapping[TopicPartition, LogRange],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
) -> tuple[Offsets, Sequence[str], Sequence[str]]:
    partitions = sorted(before)
    if isinstance(scenario, ToOffset):
        try:
            return scenario.targets(partitions, before, logs), (), ()
        except PlanRefusedError as error:
            return {}, error.refusals, ()
    if scenario.moment <= now:
        first = client.offsets_for_time(partitions, timestamp_ms(scenario.moment))
        return offsets_at_time(first, logs), (), ()
    text = f"to_datetime={scenario.moment.isoformat()} is in the future"
    if on_out_of_range == "fail":
        return {}, [f"{text}: give a time that has passed, or to_offset='latest' for the log end"], ()
    if on_out_of_range == "skip":
        return {}, (), [f"{text}: every partition is left alone"]
    return {tp: logs[tp].end for tp in partitions}, (), [f"{text}: moved to the log end"]


def _active(group: GroupDescription) -> list[str]:
    """Return the refusal for a group with members, as Kafka would, but with the members named."""
    if not group.active:
        return []
    return [
        f"group {group.group_id!r} is {group.state} with {len(group.members)} members ({name_members(group.members)}): only they may "
        "commit; stop them first"
    ]


def _source(scenario: Scenario) -> dict[str, object]:
    if isinstance(scenario, ToDatetime):
        return {"to_datetime": scenario.moment.isoformat()}
    return {"to_offset": "offsets" if isinstance(scenario.to, Mapping) else scenario.to}
