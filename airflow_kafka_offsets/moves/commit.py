"""Plans commits: compares target offsets with the groups' commits and the logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import GroupMovedError, PlanRefusedError, UnknownTopicPartitionError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, foreign_query
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    Offsets,
    TopicPartition,
    committed_offsets,
    committed_texts,
    positions_past_targets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids, newer_than_batch


def plan_commits(
    client: OffsetsClient,
    targets: Mapping[str, Offsets],
    *,
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy = "fail",
    allow_rewind: bool = True,
    query: str | None = None,
    may_go_back: Callable[[str, Commits], Collection[TopicPartition]] | None = None,
    read_at: int | None = None,
    log_check: LogCheck = LogCheck(),  # noqa: B008  # it is frozen
    if_lost: str | None = None,
    refuse_active: bool = False,
) -> list[OffsetPlan]:
    """
    Compare target offsets with the groups' commits and the logs.

    :param targets: group -> its target offsets.
    :param source: origin of the offsets, for the receipt.
    :param query: id of the Spark query; refuses a group that another query follows.
    :param may_go_back: given a group and its commits, returns the partitions that may always move back.
    :param read_at: when Spark planned the batch that ends at the offsets, in ms since 1970; ``None`` if
        unknown.
    :param refuse_active: whether to refuse groups with members.
    """
    # Called first, because a running commit of a window still changes the positions.
    active = active_group_refusals(client, targets) if refuse_active else {}
    partitions = sorted({tp for offsets in targets.values() for tp in offsets})
    # Read before the logs: if a topic is recreated in between, the commit must not get the new id.
    ids = known_log_ids(client, {tp.topic for tp in partitions})
    try:
        logs = client.log_ranges(partitions)
    except UnknownTopicPartitionError as error:
        raise PlanRefusedError(
            f"{summarize(error.missing or partitions)} is not on the broker: the connection leads to another "
            "cluster, the topic was deleted, or the source belongs to another system with the same offset "
            f"format; correct the connection, or leave the topic out with {parameter_text('topics', ...)}"
        ) from error
    group_plans = []
    for group_id, offsets in targets.items():
        committed = client.committed(group_id, offsets)
        refusal = None if query is None else foreign_query(group_id, committed, query)
        refusals = [refusal] if refusal else []
        refusals += _of_other_kind(client, group_id, committed)
        others = log_check.refusals(ids, group_id, committed)
        refusals += others
        if read_at is not None and not (others or log_check.allow_new_cluster):
            unknown = {tp: offset for tp, offset in offsets.items() if not _names_cluster(committed[tp])}
            refusals += newer_than_batch(client, unknown, read_at)
        plan = OffsetPlan.make(
            group_id,
            offsets,
            committed_offsets(committed),
            logs,
            source=source,
            on_out_of_range=on_out_of_range,
            allow_rewind=allow_rewind,
            may_go_back=may_go_back(group_id, committed) if may_go_back else (),
            refusals=refusals,
            log_ids=ids,
            if_lost=if_lost,
        )
        refusals = [*dict.fromkeys((*plan.refusals, *active.get(group_id, ())))]
        # The metadata is kept too: a restore and the Offsets tab show the origin of the previous commits.
        group_plans.append(replace(plan, refusals=tuple(refusals), metadata=committed_texts(committed)))
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
    ahead = {
        plan.group_id: past
        for plan in group_plans
        if (past := positions_past_targets(plan.before, targets[plan.group_id]))
    }
    now = read_again() if ahead else {}
    if ahead and not any(positions_past_targets(past, now.get(group, {})) for group, past in ahead.items()):
        raise GroupMovedError(
            f"group {', '.join(ahead)} was committed with later offsets since these were read; nothing was "
            "changed; commit again"
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


def _of_other_kind(client: OffsetsClient, group_id: str, committed: Commits) -> list[str]:
    """
    Return why a group must not be committed to, if it is not a consumer group.

    Kafka accepts commits to a streams group. The check is skipped for a group with commits of this package,
    because it needs a separate process.
    """
    if any(map(CommitMetadata.of, committed.values())):
        return []
    other = client.describe_groups([group_id])[group_id].kind_refusal
    return [other] if other else []


def _names_cluster(commit: Commit | None) -> bool:
    made = CommitMetadata.of(commit)
    return made is not None and bool(made.cluster)
