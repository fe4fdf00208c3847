"""Plans the reset of a checkpoint and of the groups that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import Archive, read_archives
from airflow_kafka_offsets.checkpoint.batch import ends_of_finished, sources_at_batch
from airflow_kafka_offsets.checkpoint.open_moves import (
    fingerprint,
    has_run_since,
    resume,
    take_back,
    unfinished_move,
    unfinished_refusal,
)
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.errors import CheckpointError, MisnamedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.offsets import Offsets, Positions, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.group_reset import plan_positions, plan_resets
from airflow_kafka_offsets.readings.known_moves import KnownMoves, kept_groups
from airflow_kafka_offsets.readings.log_checks import LogCheck
from airflow_kafka_offsets.readings.log_ids import known_log_ids
from airflow_kafka_offsets.readings.places import named_by
from airflow_kafka_offsets.readings.positions import last_commits

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_reset(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    named: Groups,
    place: Place,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    policy: CheckpointPolicy | None = None,
    by: CommitMetadata | None = None,
    interrupted: bool | None = None,
    allow_new_cluster: bool = False,
    saved: Mapping[str, Offsets] | None = None,
) -> PipelinePlan:
    """
    Plan to move a checkpoint and the groups that follow it to the same offsets; without a checkpoint, the
    groups.

    With a checkpoint the partitions are those of the checkpoint's newest committed batch. ``committed`` and
    ``shift_by`` start from the group's committed offset, as in Kafka's tool; a partition without one starts
    where the checkpoint is. A partition that was added after the batch of ``to_batch`` is refused.

    A move that was begun and not finished is finished by its task, and by the same request of anybody, with
    the offsets that it was planned with; any other request is refused until then.

    :param named: the groups and topics of the pipeline.
    :param by: who resets: names the task run.
    :param interrupted: see :func:`~airflow_kafka_offsets.moves.group_reset.plan_resets`.
    :param allow_new_cluster: whether the offsets are known to be right on a cluster, or topic, that is
        another one than before.
    :param saved: group -> offsets of a saved plan, whose digest ``by`` has; they are not evaluated again.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished.
    :raises MoveUnfinishedError: if a move of another request was begun and not finished.
    :raises PlanRefusedError: if the pipeline's names do not fit the checkpoint.
    """
    log_check = LogCheck(allow_new_cluster, checkpoint=checkpoint)
    plan = partial(plan_resets, client, now=now, on_out_of_range=on_out_of_range, log_check=log_check)
    if checkpoint is None and saved is not None:
        return PipelinePlan(_to_known(plan, saved, place, old_offsets=False))
    if checkpoint is None:
        scopes = named.scopes()
        return PipelinePlan(plan(scopes, place, on_no_commit=on_no_commit, by=by, interrupted=interrupted))
    sources = moving_sources(checkpoint)
    positions = named.of(sources).by_group
    who = by or CommitMetadata()
    request = fingerprint(repr(place), named.group_id, named.scope.as_json())
    if saved is not None:
        request = fingerprint("plan", who.plan)
    open_move, goes_on = _goes_on_from(
        client, checkpoint, who, request, place, cleared=bool(interrupted), saved=saved is not None
    )
    before: dict[str, Positions] = {}
    known = saved
    if open_move is None:
        KnownMoves.of(checkpoint).log_unfinished_recovery(sources, who)
    else:
        before, planned = kept_groups(checkpoint, open_move)
        known = planned if goes_on else None
    if not goes_on and place.batch_id is not None:
        known = named.of(_at_batch(checkpoint, place.batch_id, sources, named.scope)).by_group
    if known is None:
        scopes = {group: TopicScope.of(offsets) for group, offsets in positions.items()}
        groups = plan(
            scopes,
            place,
            on_no_commit=on_no_commit,
            at_checkpoint=positions,
            by=by,
            interrupted=interrupted,
        )
    else:
        if goes_on and open_move is not None:
            log_check = _check_of(open_move, allow_new_cluster)
        # An interrupted move has kept where it was to go: that is what is done now.
        groups = _to_known(partial(plan, log_check=log_check), known, place, old_offsets=saved is None)
    targets = named.to_sources(sources, offsets_after(groups))
    if open_move is None:
        return PipelinePlan.make(groups, plan_seek(checkpoint, targets, policy, request=request))
    checkpoint_plan = _plan_from(open_move, checkpoint, targets, policy, request, goes_on=goes_on)
    return PipelinePlan.make(groups, checkpoint_plan).with_before(before)


def _goes_on_from(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    by: CommitMetadata,
    request: str,
    place: Place,
    *,
    cleared: bool,
    saved: bool,
) -> tuple[Archive | None, bool]:
    """Return the move that a reset goes on from, see :func:`_open_move`, and whether it finishes it."""
    open_move = _open_move(client, checkpoint, by, request, place, cleared=cleared)
    if open_move is None or open_move.request == request or not open_move.over:
        return open_move, open_move is not None
    if saved:
        # A saved plan knows where it begins: also after a move that this task has made before it.
        return None, False
    # The end of the batch that the move has rewritten is not what it was.
    if place.relative or place.from_commits or place == Place("batch", open_move.batch_id):
        raise PlanRefusedError(
            f"{checkpoint.location}: this task has moved it before with other parameters (archive "
            f"{open_move.name}), and nothing was committed since: take that back first "
            f"({take_back(checkpoint, open_move)}), or trigger a new run"
        )
    return open_move, False


def _to_known(
    plan: Callable[..., list[OffsetPlan]],
    known: Mapping[str, Offsets],
    place: Place,
    *,
    old_offsets: bool,
) -> list[OffsetPlan]:
    """Plan the move of groups to offsets that are known, each to its own; ``place`` is for the receipt."""
    return [
        replace(each, source=place.as_json())
        for group, offsets in known.items()
        if offsets
        for each in plan({group: TopicScope.of(offsets)}, Place("offsets", offsets), old_offsets=old_offsets)
    ]


def _plan_from(
    open_move: Archive,
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None,
    request: str,
    *,
    goes_on: bool,
) -> CheckpointPlan:
    """Plan the checkpoint's part of a reset whose task has moved the checkpoint before."""
    if goes_on and not has_run_since(checkpoint, open_move):
        plan = plan_seek(checkpoint, targets, policy, request=open_move.request)
        return resume(checkpoint, plan, open_move)
    plan = plan_seek(checkpoint, targets, policy, request=request, keeps_begun=goes_on)
    plan = replace(plan, before=open_move.before, carried=True)
    if goes_on and not plan.steps and plan.after == open_move.after:
        # The query has begun a batch from there, and has not finished it.
        plan = replace(plan, archive=open_move.name, resumes=True)
    if goes_on and plan.refusals:
        way_out = f"or take this task's move back: {take_back(checkpoint, open_move, pending=True)}"
        plan = replace(plan, refusals=(*plan.refusals, way_out))
    return plan


def _open_move(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    by: CommitMetadata,
    request: str,
    place: Place,
    *,
    cleared: bool,
) -> Archive | None:
    """
    Return the move that a reset goes on from: one that was not finished, or that nobody has gone on from.

    The second is this same task's: of an earlier try, or cleared before its work was committed.

    :param cleared: whether the task goes on from its move also after a Clear: tasks come after it.
    """
    unfinished = unfinished_move(checkpoint)
    if unfinished is not None:
        same = by.same_task(unfinished.by) or not (by.run or unfinished.by.run)
        lasting = not (place.relative or place.from_commits) or place.kind == "shift"
        if unfinished.request == request and (same or lasting):
            return unfinished
        raise unfinished_refusal(checkpoint, unfinished)
    archives = [each for each in read_archives(checkpoint) if not each.undone]
    mine = [each for each in archives if by.same_task(each.by) or by.same_plan(each.by)]
    last = mine[-1].by if mine else CommitMetadata()
    retried = bool(by.token and last.token == by.token) or by.same_plan(last)
    if not mine or not (cleared or retried):
        return None
    # Somebody may have committed what a retry finds: the checkpoint is where it was moved to, all the same.
    if retried and mine[-1] is archives[-1] and not has_run_since(checkpoint, mine[-1]):
        return mine[-1]
    _, after = kept_groups(checkpoint, mine[-1])
    still = any(
        commit is not None and commit.by is not None and by.same_task(commit.by)
        for group, offsets in after.items()
        for commit in last_commits(client, group, offsets).values()
    )
    return mine[-1] if still else None


def plan_checkpoint_seek(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    place: Place,
    *,
    scope: TopicScope | None = None,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    policy: CheckpointPolicy | None = None,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """
    Plan to move a checkpoint alone; ``committed`` and ``shift_by`` start from where it is.

    A partition that was added after the batch of ``to_batch`` is refused.

    :param scope: partitions outside stay where they are.
    :param allow_new_cluster: see :func:`plan_reset`.
    """
    scope = scope or TopicScope()
    request = fingerprint(repr(place), None, scope.as_json())
    sources = moving_sources(checkpoint)
    unfinished = unfinished_move(checkpoint)
    if unfinished is not None and unfinished.request == request:
        plan = plan_seek(checkpoint, unfinished.after, policy, request=request)
        ids = known_log_ids(client, {tp.topic for offsets in unfinished.after.values() for tp in offsets})
        refusals = _check_of(unfinished, allow_new_cluster).refusals(ids)
        return PipelinePlan((), replace(plan, refusals=(*refusals, *plan.refusals), log_ids=ids))
    everything = {tp for offsets in sources.values() for tp in offsets}
    if refusals := Groups(None, scope).misnamed(sources, partitions=True):
        raise MisnamedError(refusals)
    log_check = LogCheck(allow_new_cluster, checkpoint=checkpoint)
    named = named_by(client, place, "", scope, within=everything, log_check=log_check)
    unknown = sorted(set(named or ()) - everything)
    if unknown:
        raise PlanRefusedError(
            f"{checkpoint.location}: the newest batch has no {summarize(unknown)}: leave it out of the "
            "offsets"
        )
    batch_id = place.batch_id
    at_batch = None if batch_id is None else _at_batch(checkpoint, batch_id, sources, scope)
    plans: dict[str, OffsetPlan] = {}
    ids = known_log_ids(client, {tp.topic for tp in everything})
    refusals = log_check.refusals(ids)
    for source, offsets in sources.items():
        before: Positions = {
            tp: offset for tp, offset in offsets.items() if tp in scope and (named is None or tp in named)
        }
        if not before:
            continue
        known = named if at_batch is None else at_batch[source]
        to = place if known is None else Place("offsets", {tp: known[tp] for tp in before})
        plans[source] = plan_positions(
            client,
            source,
            before,
            to,
            source={},
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            refusals=refusals,
            log_ids=ids,
        )
    targets = {source: plan.after for source, plan in plans.items()}
    checkpoint_plan = plan_seek(checkpoint, targets, policy, request=request)
    return PipelinePlan((), checkpoint_plan.judged(plans.values()))


def _check_of(move: Archive, allow_new_cluster: bool) -> LogCheck:
    return LogCheck(allow_new_cluster, f"the move to be finished (archive {move.name})", move.log_ids)


def _at_batch(
    checkpoint: SparkCheckpoint, batch_id: int, newest: Mapping[str, Offsets], scope: TopicScope
) -> dict[str, Offsets]:
    return sources_at_batch(batch_id, ends_of_finished(checkpoint, batch_id), newest, scope)


def moving_sources(checkpoint: SparkCheckpoint) -> dict[str, Offsets]:
    """Return the offsets of the Kafka sources of a query that is moved; an error if it has none."""
    sources = checkpoint.read().kafka_offsets
    if not sources:
        raise CheckpointError(
            f"{checkpoint.location}: the newest finished batch has no Kafka offsets, or no batch has "
            "finished, so there is nothing to move: check checkpoint_location, or let the query's first "
            "batch finish"
        )
    return sources
