"""Plans the reset of a checkpoint and of the groups that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.batch import finished_batch_ends, source_offsets_at_batch
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import CheckpointError, MisnamedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Offsets, Positions, as_commits, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text
from airflow_kafka_offsets.moves.groups import plan_group_resets, plan_positions
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import LogCheck, current_logs_refusals, known_log_ids
from airflow_kafka_offsets.readings.places import explicit_offsets


def plan_reset(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    selection: GroupSelection,
    place: Place,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    policy: CheckpointPolicy | None = None,
    metadata: CommitMetadata | None = None,
    interrupted: bool | None = None,
    allow_new_cluster: bool = False,
    saved: Mapping[str, Offsets] | None = None,
) -> PipelinePlan:
    """
    Plan to move a checkpoint and the groups that follow it to the same offsets; without a checkpoint, only
    groups.

    With a checkpoint, the partitions are those of the checkpoint's newest committed batch. ``committed``
    and ``shift_by`` are relative to the group's committed offset, as in Kafka's tool; for a partition without
    a commit, they are relative to the checkpoint. A partition that was added after the batch of ``to_batch``
    is refused.

    An unfinished move is resumed, with its planned offsets, by the same task; by an identical request of
    another task only if the place does not move, or is a shift. Any other request is refused until then.

    :param saved: group -> offsets of a saved plan, which are used without evaluating the place again; the
        plan's digest is in ``metadata``.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished.
    :raises MoveUnfinishedError: if a move of another request was started and not finished.
    :raises PlanRefusedError: if the pipeline's names do not match the checkpoint.
    """
    plan = partial(
        plan_group_resets,
        client,
        place=place,
        now=now,
        on_out_of_range=on_out_of_range,
        on_no_commit=on_no_commit,
        metadata=metadata,
        interrupted=interrupted,
    )
    if checkpoint is None:
        if saved is None and place.batch_id is not None:
            batch = parameter_text("to_batch")
            raise parameter_error("checkpoint_location", f" is missing: {batch} is a batch of a checkpoint")
        scopes = selection.scopes() if saved is None else _exact_scopes(saved)
        return PipelinePlan(plan(scopes, targets=saved, log_check=LogCheck(allow_new_cluster)))
    moves = KnownMoves(checkpoint)
    state = checkpoint.read()
    log_check = LogCheck(allow_new_cluster, moves=moves, state=state)
    sources = movable_sources(checkpoint, state)
    positions = selection.assign_offsets(sources)
    made_by = metadata or CommitMetadata()
    how = (repr(place), selection.group_id, selection.scope.as_json())
    request = digest(*how) if saved is None else digest("plan", made_by.plan)
    continued = _move_to_continue(client, moves, made_by, request, place, cleared=bool(interrupted))
    resumed = continued if continued is not None and continued.request == request else None
    if continued is not None and resumed is None:
        if saved is None:
            _refuse_relative_to_own_move(moves, continued, place)
        else:
            # A saved plan has its own start, also after an earlier move of this task.
            continued = None
    before: dict[str, Positions] = {}
    targets = saved
    if continued is None:
        moves.log_unfinished_recovery(sources, made_by)
    else:
        before, planned = moves.group_offsets(continued)
        if resumed is not None:
            # An interrupted move has saved its target offsets, which are used now.
            _refuse_other_cluster(client, moves, resumed)
            targets, log_check = planned, LogCheck(allow_new_cluster)
    target_check = log_check
    if resumed is None and place.batch_id is not None:
        targets = selection.assign_offsets(
            _batch_offsets(checkpoint, place.batch_id, sources, selection.scope)
        )
        target_check = _batch_check(log_check, moves, state, place.batch_id)
    groups = plan(
        _exact_scopes(positions if targets is None else targets),
        targets=targets,
        at_checkpoint=positions,
        log_check=target_check,
        old_offsets=None if targets is None else saved is None,
    )
    of_sources = selection.to_sources(sources, offsets_after(groups))
    left = log_check.logs_left(client, sources, groups)
    if continued is None:
        checkpoint_plan = plan_seek(checkpoint, of_sources, policy, request=request, left=left)
    else:
        checkpoint_plan = _continue_move(continued, moves, of_sources, policy, request, left)
    return PipelinePlan.combine(groups, checkpoint_plan).with_before(before)


def _exact_scopes(targets: Mapping[str, Offsets]) -> dict[str, TopicScope]:
    """Return the scope of each group's offsets."""
    return {group: TopicScope.exactly(offsets) for group, offsets in targets.items() if offsets}


def _refuse_relative_to_own_move(moves: KnownMoves, own_move: ArchivedMove, place: Place) -> None:
    """Refuse another place that depends on where this task's own move has left the pipeline."""
    traits = place.traits
    # The move has rewritten this batch's file, so the end of the batch has changed.
    if traits.relative or traits.starts_from_commits or place == Place("batch", own_move.batch_id):
        raise PlanRefusedError(
            f"{moves.checkpoint.location}: this task has already moved the checkpoint with other parameters "
            f"(archive {own_move.name}), and nothing was committed since: undo that move first "
            f"({moves.restore_command(own_move.name)}){dag_text(', or trigger a new run')}"
        )


def _continue_move(
    begun: ArchivedMove,
    moves: KnownMoves,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None,
    request: str,
    left: LogIds,
) -> CheckpointPlan:
    """
    Plan the checkpoint's part of a reset whose task has already moved the checkpoint.

    With the same request this finishes the move; with another one it moves on from where the move ended.
    """
    resumes = begun.request == request
    if resumes and not (left or moves.has_run_since(begun)):
        rest = plan_seek(moves.checkpoint, targets, policy, request=request)
        return replace(begun.resume(rest), left=begun.left)
    plan = plan_seek(
        moves.checkpoint, targets, policy, request=request, keep_pending_batch=resumes, left=left
    )
    plan = replace(plan, before=begun.before, carried=True, left=left or begun.left)
    if resumes and not plan.steps and plan.after == begun.after:
        # The query has started a batch at the target, and has not finished it.
        plan = replace(plan, archive=begun.name, resumes=True)
    if resumes and plan.refusals:
        way_out = f"or undo this task's move: {moves.restore_command(begun.name, pending=True)}"
        plan = replace(plan, refusals=(*plan.refusals, way_out))
    return plan


def _move_to_continue(
    client: OffsetsClient,
    moves: KnownMoves,
    metadata: CommitMetadata,
    request: str,
    place: Place,
    *,
    cleared: bool,
) -> ArchivedMove | None:
    """
    Return the move that a reset continues: an unfinished move, else this task's own, see :func:`_own_move`.

    :raises MoveUnfinishedError: if the unfinished move is of another request.
    """
    unfinished = moves.unfinished()
    if unfinished is not None:
        same = metadata.is_same_task(unfinished.made_by) or not (metadata.run or unfinished.made_by.run)
        follows = place.traits.relative or place.traits.starts_from_commits
        repeatable = place.kind == "shift" or not follows
        if unfinished.request == request and (same or repeatable):
            return unfinished
        # With another target, the remaining writes would not match those that were already made.
        raise moves.unfinished_error(unfinished)
    moves.refuse_taken_back(metadata)
    return _own_move(client, moves, metadata, cleared=cleared)


def _own_move(
    client: OffsetsClient, moves: KnownMoves, metadata: CommitMetadata, *, cleared: bool
) -> ArchivedMove | None:
    """
    Return the finished move of an earlier try of this task, if no work has followed it.

    :param cleared: whether a move from before a Clear of the task counts too: it has downstream tasks.
    """
    standing = ((each, each.made_by) for each in moves.of_query if not each.undone)
    found = (each for each, by in standing if metadata.is_same_task(by) or metadata.is_same_plan(by))
    mine = next(found, None)
    if mine is None:
        return None
    retried = metadata.is_same_instance(mine.made_by) or metadata.is_same_plan(mine.made_by)
    if not (cleared or retried):
        return None
    # On a retry, other commits to the group do not matter while the checkpoint is still at the target.
    if retried and not any(moves.in_effect(mine.number)) and not moves.has_run_since(mine):
        return mine
    _, after = moves.group_offsets(mine)
    still = any(
        (by := CommitMetadata.of(commit)) is not None and metadata.is_same_task(by)
        for group, offsets in after.items()
        for commit in client.committed(group, offsets).values()
    )
    return mine if still else None


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
    Plan to move only a checkpoint; ``committed`` and ``shift_by`` are relative to its current position.

    A partition that was added after the batch of ``to_batch`` is refused.

    :param scope: the partitions to move; others keep their positions.
    """
    scope = scope or TopicScope()
    request = digest(repr(place), None, scope.as_json())
    moves = KnownMoves(checkpoint)
    state = checkpoint.read()
    sources = movable_sources(checkpoint, state)
    unfinished = moves.unfinished()
    if unfinished is not None and unfinished.request == request:
        _refuse_other_cluster(client, moves, unfinished)
        plan = plan_seek(checkpoint, unfinished.after, policy, request=request)
        return PipelinePlan((), replace(plan, log_ids=unfinished.log_ids))
    everything = {tp for offsets in sources.values() for tp in offsets}
    MisnamedError.raise_if(GroupSelection(None, scope).unmatched_names(sources, partitions=True))
    log_check = LogCheck(allow_new_cluster, moves=moves, state=state, only_whole=True)
    named = explicit_offsets(client, place, "", scope, within=everything, log_check=log_check)
    unknown = sorted(set(named or ()) - everything)
    if unknown:
        raise PlanRefusedError(
            f"{checkpoint.location}: the newest batch does not have {summarize(unknown)}: remove these "
            "partitions from the offsets"
        )
    batch_id = place.batch_id
    origin = sources if batch_id is None else _batch_offsets(checkpoint, batch_id, sources, scope)
    target_check = log_check if batch_id is None else _batch_check(log_check, moves, state, batch_id)
    group_plans: dict[str, OffsetPlan] = {}
    ids = known_log_ids(client, {tp.topic for tp in everything})
    refusals = log_check.refusals(ids)
    starts = place.traits.starts_from_commits or batch_id is not None
    for source, offsets in sources.items():
        before: Positions = {
            tp: offset for tp, offset in offsets.items() if tp in scope and (named is None or tp in named)
        }
        if not before:
            continue
        known = named if batch_id is None else origin[source]
        to = place if known is None else Place("offsets", {tp: known[tp] for tp in before})
        start = {tp: origin[source][tp] for tp in before} if starts else {}
        group_plans[source] = plan_positions(
            client,
            source,
            as_commits(before),
            to,
            source={},
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            refusals=refusals or target_check.position_refusals(client, start, {}, ids),
            log_ids=ids.restricted_to(tp.topic for tp in before),
        )
    targets = {source: group_plan.after for source, group_plan in group_plans.items()}
    left = log_check.logs_left(client, sources, group_plans.values())
    checkpoint_plan = plan_seek(checkpoint, targets, policy, request=request, left=left)
    return PipelinePlan((), checkpoint_plan.with_group_plans(group_plans.values()))


def _refuse_other_cluster(client: OffsetsClient, moves: KnownMoves, begun: ArchivedMove) -> None:
    """Refuse to finish a move on another cluster than that for which its offsets were planned."""
    what, remedy = f"the unfinished move (archive {begun.name})", moves.restore_command(begun.name)
    PlanRefusedError.raise_if(
        current_logs_refusals(client, what, begun.log_ids, remedy=f"take it back: {remedy}")
    )


def _batch_offsets(
    checkpoint: SparkCheckpoint, batch_id: int, newest: Mapping[str, Offsets], scope: TopicScope
) -> dict[str, Offsets]:
    return source_offsets_at_batch(batch_id, finished_batch_ends(checkpoint, batch_id), newest, scope)


def _batch_check(log_check: LogCheck, moves: KnownMoves, state: CheckpointState, batch_id: int) -> LogCheck:
    """Return the check of the offsets of an earlier batch, which no commit of the group confirms."""
    at = moves.checkpoint.entry(batch_id).batch_timestamp_ms
    state = replace(state, batch_id=batch_id, batch_timestamp_ms=at)
    return replace(log_check, state=state, only_whole=True)


def movable_sources(checkpoint: SparkCheckpoint, state: CheckpointState | None = None) -> dict[str, Offsets]:
    """Return the offsets of a query's Kafka sources; raise an error for a query that has read no offsets."""
    sources = (state or checkpoint.read()).kafka_offsets
    if not sources:
        raise CheckpointError(
            f"{checkpoint.location}: the newest finished batch has no Kafka offsets, or no batch has "
            f"finished, so there is nothing to move: check {parameter_text('checkpoint_location')}, or let "
            "the query's first batch finish"
        )
    return sources
