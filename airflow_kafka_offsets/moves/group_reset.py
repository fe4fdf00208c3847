"""Plans the reset of consumer groups, with the scenarios of Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.kafka.groups import name_members
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, is_partly_moved, log_ids_of
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import (
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import check_restorable
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.readings.log_checks import LogCheck
from airflow_kafka_offsets.readings.log_ids import known_log_ids
from airflow_kafka_offsets.readings.places import explicit_offsets, resolve_place
from airflow_kafka_offsets.readings.positions import (
    check_partitions,
    group_positions,
    last_commits,
    partitions_in_scope,
)

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_resets(
    client: OffsetsClient,
    scopes: Mapping[str, TopicScope],
    place: Place,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    at_checkpoint: Mapping[str, Offsets] | None = None,
    metadata: CommitMetadata | None = None,
    interrupted: bool | None = None,
    log_check: LogCheck = LogCheck(),  # noqa: B008  # it is frozen
    old_offsets: bool | None = None,
) -> list[OffsetPlan]:
    """
    Plan the reset of groups, without changing anything.

    :param scopes: group -> the partitions to move; without named topics those it has commits for.
    :param now: the present time; a later one to move to is out of range.
    :param at_checkpoint: group -> where partitions without a commit start from; for others ``on_no_commit``
        decides.
    :param metadata: who resets. A relative place leaves a partition alone that an earlier try has moved: one
        with the same token, or one of the same task that has stopped half-way, before it was cleared.
    :param interrupted: whether an earlier try of the task is known to have stopped half-way; by default the
        groups' commits show it.
    :param log_check: how the cluster and the topics are compared.
    :param old_offsets: whether the offsets to go to were counted in logs of earlier; by default those of a
        place that starts from the commits were.
    :return: a plan for each group, with its refusals.
    :raises UnknownTopicPartitionError: if a partition is not on the broker.
    :raises PlanRefusedError: if the receipt would be too large to be read back.
    """
    place.refuse_unused_offsets(scopes.values())
    # First: a window that is just being committed moves the positions.
    refusals = active_group_refusals(client, scopes)
    given = {
        group_id: explicit_offsets(client, place, group_id, scope, groups=len(scopes), log_check=log_check)
        for group_id, scope in scopes.items()
    }
    positions = {
        group_id: _positions_to_move(client, group_id, scope, given[group_id])
        for group_id, scope in scopes.items()
    }
    moved = _moved_before(client, positions, metadata, interrupted) if metadata and place.relative else {}
    ids = known_log_ids(client, {tp.topic for before in positions.values() for tp in before})
    group_plans = []
    if old_offsets is None:
        old_offsets = place.starts_from_commits
    for group_id, before in positions.items():
        commits = client.committed(group_id, before)
        others = log_check.refusals(ids, group_id, commits, old_offsets=old_offsets)
        plan = plan_positions(
            client,
            group_id,
            before,
            place if (named := given[group_id]) is None else Place("offsets", named),
            source=place.as_json(),
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            at_checkpoint=(at_checkpoint or {}).get(group_id),
            moved=moved.get(group_id, ()),
            refusals=[*refusals.get(group_id, []), *others],
            log_ids=ids,
        )
        again = log_ids_of(commits, ids).recreated_topics(ids)
        plan = plan.with_note(
            [tp for tp in plan.before if tp.topic in again],
            "its topic was created again since the last commit",
        )
        without = [move.topic_partition for move in plan.moves if move.before is None]
        group_plans.append(
            plan.with_note(without, "no committed offset yet, and a restore cannot take the new one away")
        )
    # Before the first write: a receipt that cannot be read back could not be restored.
    check_restorable(group_plans)
    return group_plans


def plan_positions(
    client: OffsetsClient,
    name: str,
    before: Positions,
    place: Place,
    *,
    source: Mapping[str, Any],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy = "fail",
    at_checkpoint: Offsets | None = None,
    moved: Sequence[TopicPartition] = (),
    refusals: Sequence[str] = (),
    log_ids: LogIds = UNKNOWN_LOGS,
) -> OffsetPlan:
    """
    Plan the move of positions, those of a group or of a checkpoint's source.

    :param name: whose positions these are.
    :param moved: partitions that an earlier try of this run has moved, and that stay there.
    :param refusals: reasons against it that are known already.
    :param log_ids: the cluster and the topics, for the plan.
    """
    logs = client.log_ranges(before)
    filled = {**before, **{tp: (at_checkpoint or {}).get(tp) for tp, at in before.items() if at is None}}
    found = resolve_place(
        client,
        place,
        filled,
        logs,
        now=now,
        on_out_of_range=on_out_of_range,
        on_no_commit=on_no_commit,
    )
    targets, notes = dict(found.offsets), [*found.notes]
    if moved:
        targets |= {tp: offset for tp in moved if (offset := before[tp]) is not None}
        notes.append(f"moved by an earlier try of this run, left alone: {summarize(moved)}")
    return OffsetPlan.make(
        name,
        targets,
        before,
        logs,
        source=source,
        on_out_of_range=on_out_of_range,
        clamped=found.clamped,
        refusals=[*refusals, *found.refusals],
        notes=notes,
        log_ids=log_ids,
    )


def _positions_to_move(
    client: OffsetsClient, group_id: str, scope: TopicScope, given: Positions | None
) -> Positions:
    if given is not None:
        # The offsets may name less than topics; but what topics names has to be there.
        if unused := set(scope.topics or ()) - {tp.topic for tp in given}:
            partitions_in_scope(client, scope.restricted_to(unused))
        if numbered := set(scope.explicit_partitions) - given.keys():
            check_partitions(client, numbered)
        return committed_offsets(client.committed(group_id, given))
    positions = group_positions(client, group_id, scope)
    if scope.topics is None:
        # As in Kafka's tool, "all topics" are the partitions that have a committed offset.
        return {tp: offset for tp, offset in positions.items() if offset is not None}
    return positions


def _moved_before(
    client: OffsetsClient,
    positions: Mapping[str, Positions],
    metadata: CommitMetadata,
    interrupted: bool | None,
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each group that an earlier try of the same reset has moved."""
    makers = {
        group_id: {
            tp: None if commit is None else commit.by
            for tp, commit in last_commits(client, group_id, before).items()
        }
        for group_id, before in positions.items()
    }
    everything = [maker for group in makers.values() for maker in group.values()]
    retried = bool(metadata.token) and any(
        maker is not None and maker.token == metadata.token for maker in everything
    )
    if not retried and not (is_partly_moved(everything, metadata) if interrupted is None else interrupted):
        return {}
    return {
        group_id: [
            tp
            for tp, maker in group.items()
            if maker is not None
            and (maker.token == metadata.token if retried else metadata.is_same_task(maker))
        ]
        for group_id, group in makers.items()
    }


def active_group_refusals(client: OffsetsClient, group_ids: Iterable[str]) -> dict[str, list[str]]:
    """
    Return the refusal for each group with members, as Kafka would refuse it, but with the members named, and
    for each that is not a consumer group.

    :raises GroupActiveError: if a window was being committed for too long, which is worth another try.
    """
    return {
        group_id: [
            group.kind_refusal
            or f"group {group_id!r} is {group.state} with {len(group.members)} members "
            f"({name_members(group.members)}): only they may commit; stop them first"
        ]
        for group_id, group in client.settled_groups(group_ids).items()
        if group.is_active
    }
