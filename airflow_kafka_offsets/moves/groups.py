"""Plans moves of consumer groups: commits of offsets, and resets like those of ``kafka-consumer-groups``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import GroupMovedError, PlanRefusedError, UnknownTopicPartitionError
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import is_partly_moved, log_ids_of, other_query_refusal
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    Commits,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    flat,
    positions_past_targets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import check_restorable
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids
from airflow_kafka_offsets.readings.places import explicit_offsets, resolve_place
from airflow_kafka_offsets.readings.positions import (
    group_commits,
    partitions_in_scope,
    refuse_missing_partitions,
)


def plan_commits(
    client: OffsetsClient,
    targets: Mapping[str, Offsets],
    *,
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy = "fail",
    allow_rewind: bool = True,
    query: str | None = None,
    may_go_back: Callable[[str, Commits], Collection[TopicPartition]] | None = None,
    log_check: LogCheck = LogCheck(),  # noqa: B008  # it is frozen
    if_lost: str | None = None,
    refuse_active: bool = False,
) -> list[OffsetPlan]:
    """
    Compare target offsets with the groups' commits and the logs.

    :param source: origin of the offsets, for the receipt.
    :param query: id of the Spark query; refuses a group that another query follows.
    :param may_go_back: given a group and its commits, returns the partitions that may always move back.
    :param if_lost: remedy for an offset below the log start, instead of the usual one.
    """
    # Called first, because a running commit of a window still changes the positions.
    active = active_group_refusals(client, targets) if refuse_active else None
    partitions = sorted({tp for offsets in targets.values() for tp in offsets})
    # Read before the logs: if a topic is recreated in between, the commit must not get the new id.
    ids = known_log_ids(client, {tp.topic for tp in partitions})
    try:
        logs = client.log_ranges(partitions)
    except UnknownTopicPartitionError as error:
        remedy = log_check.remedy or f"leave the topic out with {parameter_text('topics', ...)}"
        raise PlanRefusedError(
            f"{summarize(error.missing or partitions)} is not on the broker: the connection leads to another "
            "cluster, the topic was deleted, or the source belongs to another system with the same offset "
            f"format; correct the connection, or {remedy}"
        ) from error
    group_plans = []
    for group_id, offsets in targets.items():
        committed = client.committed(group_id, offsets)
        foreign = None if query is None else other_query_refusal(group_id, committed, query)
        members = _kind_refusals(client, group_id, committed) if active is None else active.get(group_id, [])
        logs_differ = log_check.position_refusals(client, offsets, ids, group_id, committed)
        plan = OffsetPlan.make(
            group_id,
            offsets,
            committed,
            logs,
            source=source,
            on_out_of_range=on_out_of_range,
            allow_rewind=allow_rewind,
            may_go_back=may_go_back(group_id, committed) if may_go_back else (),
            refusals=[*([foreign] if foreign else []), *members, *logs_differ],
            log_ids=ids,
            if_lost=if_lost or log_check.remedy,
        )
        group_plans.append(plan)
    return group_plans


def check_not_overtaken(
    group_plans: Iterable[OffsetPlan],
    targets: Mapping[str, Offsets],
    read_again: Callable[[], Mapping[str, Offsets]],
) -> None:
    """
    Check that groups are not ahead of their targets because these are old by now.

    :param read_again: returns the present targets of each group.
    :raises GroupMovedError: if later targets were committed since the targets were read.
    """
    before = flat({plan.group_id: plan.before for plan in group_plans})
    ahead = positions_past_targets(before, flat(targets))
    if ahead and not positions_past_targets(ahead, flat(read_again())):
        groups = ", ".join(dict.fromkeys(group for group, _ in ahead))
        raise GroupMovedError(
            f"group {groups} was committed with later offsets since these were read; nothing was changed; "
            "commit again"
        )


def active_group_refusals(client: OffsetsClient, group_ids: Iterable[str]) -> dict[str, list[str]]:
    """
    Return the refusal for each group that has members or is not a consumer group; the text names the members.

    :raises GroupActiveError: if the commit of a window takes too long; a retry may succeed.
    """
    return {
        group_id: [
            group.kind_refusal or f"{group.members_text}: only the members may commit; stop them first"
        ]
        for group_id, group in client.settled_groups(group_ids).items()
        if group.is_active
    }


def _kind_refusals(client: OffsetsClient, group_id: str, committed: Commits) -> list[str]:
    """
    Return why a group must not be committed to, if it is not a consumer group.

    Kafka accepts commits to a streams group. The check is skipped for a group with commits of this package,
    because it needs a separate process.
    """
    if any(map(CommitMetadata.of, committed.values())):
        return []
    other = client.describe_groups([group_id])[group_id].kind_refusal
    return [other] if other else []


def plan_group_resets(
    client: OffsetsClient,
    scopes: Mapping[str, TopicScope],
    place: Place,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    at_checkpoint: Mapping[str, Offsets] | None = None,
    metadata: CommitMetadata = NO_METADATA,
    interrupted: bool = False,
    log_check: LogCheck = LogCheck(),  # noqa: B008  # it is frozen
) -> list[OffsetPlan]:
    """
    Plan the reset of groups to a place, without changing anything.

    :param scopes: group -> the partitions to move; without named topics, the partitions with commits.
    :param at_checkpoint: group -> positions for partitions without a commit; for other partitions
        ``on_no_commit`` decides.
    :param metadata: metadata of the reset. With a relative place, a partition that an earlier try has moved
        is left alone: a try with the same token, or a try of the same task that stopped half-way before the
        task was cleared.
    :param interrupted: whether an earlier try of the task is known to have stopped half-way; else the groups'
        commits decide.
    """
    if not scopes:
        return []
    place.refuse_unused_offsets(scopes.values())
    # Called first, because a running commit of a window still changes the positions.
    active = active_group_refusals(client, scopes)
    places: dict[str, Place] = {}
    commits_of: dict[str, Commits] = {}
    for group_id, scope in scopes.items():
        named = explicit_offsets(client, place, group_id, scope, groups=len(scopes), log_check=log_check)
        places[group_id] = place if named is None else Place("offsets", named)
        commits_of[group_id] = _commits_to_move(client, group_id, scope, named)
    moved = _moved_by_earlier_try(commits_of, metadata, interrupted) if place.traits.relative else ()
    ids = known_log_ids(client, {tp.topic for commits in commits_of.values() for tp in commits})
    log_check = replace(log_check, old_offsets=place.traits.starts_from_commits)
    group_plans = []
    for group_id, commits in commits_of.items():
        known = (at_checkpoint or {}).get(group_id, {})
        starts = {tp: known[tp] for tp, commit in commits.items() if commit is None and tp in known}
        refusals = log_check.position_refusals(client, starts, ids, group_id, commits)
        group_plans.append(
            plan_positions(
                client,
                group_id,
                commits,
                places[group_id],
                source=place.as_json(),
                now=now,
                on_out_of_range=on_out_of_range,
                on_no_commit=on_no_commit,
                starts=starts,
                moved=[tp for tp in commits if (group_id, tp) in moved],
                refusals=[*active.get(group_id, []), *refusals],
                log_ids=ids,
            )
        )
    return _restorable(group_plans)


def plan_group_resets_to(
    client: OffsetsClient, targets: Mapping[str, Offsets], **how: Any
) -> list[OffsetPlan]:
    """Plan the reset of groups that have targets; ``how`` as in :func:`plan_commits`."""
    targets = {group_id: offsets for group_id, offsets in targets.items() if offsets}
    return _restorable(plan_commits(client, targets, refuse_active=True, **how))


def _restorable(group_plans: Iterable[OffsetPlan]) -> list[OffsetPlan]:
    """Return plans with remarks on what a restore cannot put back; refuse them if it can put back nothing."""
    plans = []
    for plan in group_plans:
        recreated = log_ids_of(plan.commits, plan.log_ids).recreated_topics(plan.log_ids)
        again = [tp for tp in plan.before if tp.topic in recreated]
        without = [tp for tp, offset in plan.before.items() if offset is None]
        plan = plan.with_note(again, "its topic was recreated since the last commit")
        plan = plan.with_note(without, "no committed offset yet, and a restore cannot remove the new one")
        plans.append(plan)
    # A receipt that is too large could not be restored.
    check_restorable(plans)
    return plans


def plan_positions(
    client: OffsetsClient,
    name: str,
    commits: Commits,
    place: Place,
    *,
    source: Mapping[str, Any],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy,
    refusals: Sequence[str],
    log_ids: LogIds,
    starts: Offsets | None = None,
    moved: Sequence[TopicPartition] = (),
) -> OffsetPlan:
    """
    Plan the move of the positions of a group or of a checkpoint's source.

    :param commits: the group's commits, or the source's positions as such.
    :param starts: positions for partitions without a commit; without one, ``on_no_commit`` decides.
    :param moved: partitions that an earlier try of this run has moved; they are left alone.
    """
    before = committed_offsets(commits)
    logs = client.log_ranges(before)
    positions = {**before, **(starts or {})}
    found = resolve_place(
        client, place, positions, logs, now=now, on_out_of_range=on_out_of_range, on_no_commit=on_no_commit
    )
    targets, notes = dict(found.offsets), [*found.notes]
    if moved:
        targets |= {tp: offset for tp in moved if (offset := before[tp]) is not None}
        notes.append(f"moved by an earlier try of this run, left alone: {summarize(moved)}")
    return OffsetPlan.make(
        name,
        targets,
        commits,
        logs,
        source=source,
        on_out_of_range=on_out_of_range,
        clamped=found.clamped,
        refusals=[*refusals, *found.refusals],
        notes=notes,
        log_ids=log_ids,
    )


def _commits_to_move(
    client: OffsetsClient, group_id: str, scope: TopicScope, given: Positions | None
) -> Commits:
    if given is not None:
        # The offsets may name fewer partitions than topics, but all partitions in topics must exist.
        if unused := set(scope.topics or ()) - {tp.topic for tp in given}:
            partitions_in_scope(client, scope.restricted_to(unused))
        if numbered := set(scope.explicit_partitions) - given.keys():
            refuse_missing_partitions(client, numbered)
        return client.committed(group_id, given)
    commits = group_commits(client, group_id, scope)
    if scope.topics is None:
        # As in Kafka's tool, "all topics" means the partitions with a committed offset.
        return {tp: commit for tp, commit in commits.items() if commit is not None}
    return commits


def _moved_by_earlier_try(
    commits_of: Mapping[str, Commits], metadata: CommitMetadata, interrupted: bool
) -> set[tuple[str, TopicPartition]]:
    """Return the groups and partitions that an earlier try of the same reset has moved."""
    makers = {key: CommitMetadata.of(commit) for key, commit in flat(commits_of).items()}
    everything = [*makers.values()]
    if any(metadata.is_same_task(maker) and metadata.is_other_request(maker) for maker in everything):
        raise PlanRefusedError(
            "this task has already moved the group with other parameters, and nothing was committed since: "
            "undo that move first, or trigger a new run"
        )
    retried = any(map(metadata.is_same_instance, everything))
    if not (retried or interrupted or is_partly_moved(everything, metadata)):
        return set()
    is_mine = metadata.is_same_instance if retried else metadata.is_same_task
    return {key for key, maker in makers.items() if is_mine(maker)}
