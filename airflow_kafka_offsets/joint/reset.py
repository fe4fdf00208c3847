"""Plans the reset of a checkpoint and of the groups that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import archive_of_run, read_attachment
from airflow_kafka_offsets.checkpoint.rewind import (
    fingerprint,
    plan_seek,
    resume,
    unfinished_move,
    unfinished_refusal,
)
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError
from airflow_kafka_offsets.kafka.resets import given_offsets, plan_positions, plan_resets, scenario_json
from airflow_kafka_offsets.model.joint import GROUPS_FILE, JointPlan, offsets_after, read_images
from airflow_kafka_offsets.model.metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Offsets, Positions, summarize
from airflow_kafka_offsets.model.plan import OffsetPlan, OutOfRangePolicy
from airflow_kafka_offsets.model.rewind import RewindPolicy
from airflow_kafka_offsets.model.scenarios import NoCommit, Scenario, ToOffset
from airflow_kafka_offsets.model.scope import GroupIds, TopicScope, group_offsets, misnamed, source_offsets

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_joint_reset(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    group_id: GroupIds,
    scope: TopicScope,
    scenario: Scenario,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: NoCommit = "fail",
    policy: RewindPolicy | None = None,
    by: CommitMetadata | None = None,
    interrupted: bool | None = None,
) -> JointPlan:
    """
    Plan to move a checkpoint and the groups that follow it to the same offsets.

    The partitions are those of the checkpoint's newest committed batch. ``current`` and ``shift_by`` start from
    the group's committed offset, as in Kafka's tool; a partition without one stands where the checkpoint does.

    A move that was begun and not finished is finished by its task, and by the same request of anybody, with the offsets
    that it was planned with; any other request is refused until then.

    :param by: who resets: names the task run.
    :param interrupted: see :func:`~airflow_kafka_offsets.kafka.resets.plan_resets`.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished.
    :raises MoveUnfinishedError: if a move of another request was begun and not finished.
    :raises PlanRefusedError: if the pipeline's names do not fit the checkpoint.
    """
    sources = moving_sources(checkpoint)
    held = group_offsets(sources, group_id, scope).by_group
    request = fingerprint(repr(scenario), group_id, scope.as_json(), on_out_of_range, on_no_commit)
    earlier = archive_of_run(checkpoint, by.token if by else "")
    unfinished = unfinished_move(checkpoint)
    if unfinished is not None and (earlier is None or unfinished.name != earlier.name):
        if unfinished.request != request:
            raise unfinished_refusal(checkpoint, unfinished)
        earlier = unfinished
    if earlier is None:
        groups = plan_resets(
            client,
            {group: TopicScope.of(offsets) for group, offsets in held.items()},
            scenario,
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            stands=held,
            by=by,
            interrupted=interrupted,
        )
        targets = source_offsets(sources, group_id, offsets_after(groups))
        return JointPlan.make(groups, plan_seek(checkpoint, targets, policy, request=request))
    # An earlier try has saved what it found and where it was to go: that is what is finished now.
    before, after = read_images(read_attachment(checkpoint, earlier, GROUPS_FILE))
    groups = []
    for group, offsets in after.items():
        scopes = {group: TopicScope.of(offsets)}
        groups += plan_resets(client, scopes, ToOffset(offsets), now=now, on_out_of_range=on_out_of_range)
    targets = source_offsets(sources, group_id, offsets_after(groups))
    rewind = plan_seek(checkpoint, targets, policy, request=earlier.request)
    groups = [replace(plan, source=scenario_json(scenario)) for plan in groups]
    return JointPlan.make(groups, resume(checkpoint, rewind, earlier)).with_before(before)


def plan_checkpoint_seek(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    scenario: Scenario,
    *,
    scope: TopicScope | None = None,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    policy: RewindPolicy | None = None,
) -> JointPlan:
    """
    Plan to move a checkpoint alone; ``current`` and ``shift_by`` start from where it stands.

    :param scope: partitions outside stay where they are.
    """
    scope = scope or TopicScope()
    request = fingerprint(repr(scenario), None, scope.as_json(), on_out_of_range)
    sources = moving_sources(checkpoint)
    unfinished = unfinished_move(checkpoint)
    if unfinished is not None and unfinished.request == request:
        return JointPlan((), plan_seek(checkpoint, unfinished.after, policy, request=request))
    everything = {tp for offsets in sources.values() for tp in offsets}
    if refusals := misnamed(None, scope, sources, partitions=True):
        raise PlanRefusedError(refusals)
    given = given_offsets(scenario, "", scope, 1)
    named = given.to if given is not None and isinstance(given.to, Mapping) else None
    unknown = sorted(set(named or ()) - everything)
    if unknown:
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: the newest batch has no {summarize(unknown)}: leave it out of the offsets"
            ]
        )
    plans: dict[str, OffsetPlan] = {}
    for source, offsets in sources.items():
        before: Positions = {
            tp: offset for tp, offset in offsets.items() if tp in scope and (named is None or tp in named)
        }
        if not before:
            continue
        to = scenario if named is None else ToOffset({tp: named[tp] for tp in before})
        plans[source] = plan_positions(
            client, source, before, to, source={}, now=now, on_out_of_range=on_out_of_range
        )
    targets = {source: plan.after for source, plan in plans.items()}
    rewind = plan_seek(checkpoint, targets, policy, request=request)
    return JointPlan((), rewind.judged(plans.values()))


def moving_sources(checkpoint: SparkCheckpoint) -> dict[str, Offsets]:
    """
    Return where the Kafka sources of a query stand that is to be moved.

    :raises CheckpointError: if the checkpoint cannot be read, or has none.
    """
    sources = checkpoint.read().kafka_offsets
    if not sources:
        raise CheckpointError(
            f"{checkpoint.location}: the newest finished batch has no Kafka offsets, or no batch has finished, so there is "
            "nothing to move: check checkpoint_location, or let the query's first batch finish"
        )
    return sources
