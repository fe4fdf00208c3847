"""Plans the reset of a checkpoint and of the groups that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.batch import finished_batch_ends, source_offsets_at_batch
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import CheckpointError, MisnamedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Offsets, as_commits, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text
from airflow_kafka_offsets.moves.groups import plan_group_resets, plan_group_resets_to, plan_positions
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
    metadata: CommitMetadata = NO_METADATA,
    interrupted: bool = False,
    allow_new_cluster: bool = False,
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

    :raises MoveUnfinishedError: if a move of another request was started and not finished.
    """
    plan_groups = partial(
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
        if place.batch_id is not None:
            batch = parameter_text("to_batch")
            raise parameter_error("checkpoint_location", f" is missing: {batch} is a batch of a checkpoint")
        return PipelinePlan(plan_groups(selection.scopes(), log_check=LogCheck(allow_new_cluster)))
    request = digest(repr(place), selection.group_id, selection.scope.as_json())
    reset = _CheckpointReset(client, checkpoint, selection, request, policy)
    repeatable = place.kind == "shift" or not (place.traits.relative or place.traits.starts_from_commits)
    earlier = reset.earlier_move(metadata, repeatable=repeatable, cleared=interrupted)
    plan_groups_to = partial(
        plan_group_resets_to, client, source=place.as_json(), on_out_of_range=on_out_of_range
    )
    if earlier is not None and earlier.request == request:
        return reset.resume(earlier, plan_groups_to, allow_new_cluster=allow_new_cluster)
    if earlier is None:
        reset.moves.log_unfinished_recovery(reset.sources, metadata)
    else:
        _refuse_relative_to_own_move(reset.moves, earlier, place)
    log_check = LogCheck(allow_new_cluster, moves=reset.moves, state=reset.state)
    if place.batch_id is None:
        scopes = {group: TopicScope.exactly(offsets) for group, offsets in reset.positions.items()}
        groups = plan_groups(scopes, at_checkpoint=reset.positions, log_check=log_check)
    else:
        ends, check = _batch_end(log_check, reset.moves, reset.state, place.batch_id, selection.scope)
        groups = plan_groups_to(selection.assign_offsets(ends), log_check=check)
    return reset.plan(groups, log_check, earlier)


def plan_reset_to(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    selection: GroupSelection,
    targets: Mapping[str, Offsets],
    *,
    metadata: CommitMetadata,
    policy: CheckpointPolicy,
    allow_new_cluster: bool,
) -> PipelinePlan:
    """
    Plan to move a pipeline to the offsets of a saved plan, like :func:`plan_reset`.

    An unfinished move is resumed by any task or command that applies the same saved plan.

    :param targets: group -> its offsets, on the present logs: the caller compares the saved plan with these.
    :param metadata: has the digest of the saved plan.
    """
    # The plan takes no topics and no on_out_of_range.
    log_check = LogCheck(allow_new_cluster, remedy="plan again", old_offsets=False)
    plan_groups_to = partial(plan_group_resets_to, client, source={})
    if checkpoint is None:
        return PipelinePlan(plan_groups_to(targets, log_check=log_check))
    reset = _CheckpointReset(client, checkpoint, selection, digest("plan", metadata.plan), policy)
    earlier = reset.earlier_move(metadata, repeatable=True)
    if earlier is not None and earlier.request == reset.request:
        return reset.resume(earlier, plan_groups_to, allow_new_cluster=allow_new_cluster)
    # A saved plan has its own start, also after an earlier move of this task.
    reset.moves.log_unfinished_recovery(reset.sources, metadata)
    log_check = replace(log_check, moves=reset.moves, state=reset.state)
    return reset.plan(plan_groups_to(targets, log_check=log_check), log_check)


class _CheckpointReset:
    """Plans the reset of a checkpoint and its groups, from one reading of the checkpoint and its moves."""

    def __init__(
        self,
        client: OffsetsClient,
        checkpoint: SparkCheckpoint,
        selection: GroupSelection,
        request: str,
        policy: CheckpointPolicy | None,
    ) -> None:
        self.request = request
        self.moves, self.state = KnownMoves(checkpoint), checkpoint.read()
        self.sources = movable_sources(self.state)
        self.positions = selection.assign_offsets(self.sources)
        """Group -> its offsets in the newest committed batch."""
        self._client, self._selection, self._policy = client, selection, policy

    def earlier_move(
        self, metadata: CommitMetadata, *, repeatable: bool, cleared: bool = False
    ) -> ArchivedMove | None:
        """
        Return the move that the reset continues: an unfinished move, else the task's own finished one.

        :param repeatable: whether the same request of another task means the same offsets.
        :param cleared: whether a move from before a Clear of the task counts too: it has downstream tasks.
        :raises MoveUnfinishedError: if the unfinished move is of another request.
        """
        unfinished = self.moves.unfinished()
        if unfinished is None:
            self.moves.refuse_taken_back(metadata)
            return self._own_move(metadata, cleared=cleared)
        same = metadata.is_same_task(unfinished.made_by) or not (metadata.run or unfinished.made_by.run)
        if unfinished.request == self.request and (same or repeatable):
            return unfinished
        # With another target, the remaining writes would not match those that were already made.
        raise self.moves.unfinished_error(unfinished)

    def _own_move(self, metadata: CommitMetadata, *, cleared: bool) -> ArchivedMove | None:
        """Return the finished move of an earlier try of this task, if no work has followed it."""
        moves = self.moves
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
            metadata.is_same_task(CommitMetadata.of(commit))
            for group, offsets in after.items()
            for commit in self._client.committed(group, offsets).values()
        )
        return mine if still else None

    def resume(
        self, begun: ArchivedMove, plan_groups_to: Callable[..., list[OffsetPlan]], *, allow_new_cluster: bool
    ) -> PipelinePlan:
        """Plan the rest of a move that the same request has begun, to the offsets in its archive."""
        _refuse_other_cluster(self._client, self.moves, begun)
        before, targets = self.moves.group_offsets(begun)
        # The logs are those on which the offsets were planned: this was checked just now.
        # Without its topics the move can only be undone: other topics would be another request.
        undo = f"undo the move: {self.moves.restore_command(begun.name)}"
        log_check = LogCheck(allow_new_cluster, remedy=undo, old_offsets=False)
        groups = plan_groups_to(targets, log_check=log_check)
        return PipelinePlan.combine(groups, self._rest(begun, groups)).with_before(before)

    def _rest(self, begun: ArchivedMove, groups: Sequence[OffsetPlan]) -> CheckpointPlan:
        """Plan the checkpoint's part of a move that has begun."""
        if not self.moves.has_run_since(begun):
            return replace(begun.resume(self._seek(groups)), left_logs=begun.left_logs)
        plan = self._seek(groups, keep_pending_batch=True)
        plan = replace(plan, before=begun.before, carried=True, left_logs=begun.left_logs)
        if not plan.steps and plan.after == begun.after:
            # The query has started a batch at the target, and has not finished it.
            plan = replace(plan, archive=begun.name, resumes=True, repeats=begun.is_over)
        if plan.refusals:
            way_out = f"or undo this task's move: {self.moves.restore_command(begun.name, pending=True)}"
            plan = replace(plan, refusals=(*plan.refusals, way_out))
        return plan

    def plan(
        self, groups: Sequence[OffsetPlan], log_check: LogCheck, earlier: ArchivedMove | None = None
    ) -> PipelinePlan:
        """
        Plan to move the checkpoint to where its groups move.

        :param earlier: this task's own move, from whose end the reset moves on.
        """
        left_logs = log_check.left_logs(self._client, self.sources, groups)
        plan = self._seek(groups, left_logs=left_logs)
        if earlier is None:
            return PipelinePlan.combine(groups, plan)
        plan = replace(plan, before=earlier.before, carried=True, left_logs=left_logs or earlier.left_logs)
        return PipelinePlan.combine(groups, plan).with_before(self.moves.group_offsets(earlier)[0])

    def _seek(self, groups: Sequence[OffsetPlan], **how: Any) -> CheckpointPlan:
        targets = self._selection.to_sources(self.sources, offsets_after(groups))
        return plan_seek(self.moves.checkpoint, targets, self._policy, request=self.request, **how)


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
    moves, state = KnownMoves(checkpoint), checkpoint.read()
    sources = movable_sources(state)
    unfinished = moves.unfinished()
    if unfinished is not None and unfinished.request == request:
        _refuse_other_cluster(client, moves, unfinished)
        plan = plan_seek(checkpoint, unfinished.after, policy, request=request)
        return PipelinePlan((), replace(plan, log_ids=unfinished.log_ids))
    everything = {tp for offsets in sources.values() for tp in offsets}
    MisnamedError.raise_if(GroupSelection(None, scope).unmatched_names(sources, partitions=True))
    log_check = target_check = LogCheck(allow_new_cluster, moves=moves, state=state, whole_logs_only=True)
    starts: Mapping[str, Offsets] = sources if place.traits.starts_from_commits else {}
    if place.batch_id is None:
        named = explicit_offsets(client, place, "", scope, within=everything, log_check=log_check)
        if unknown := set(named or ()) - everything:
            raise PlanRefusedError(
                f"{checkpoint.location}: the newest batch does not have {summarize(unknown)}: remove these "
                "partitions from the offsets"
            )
        if named is not None:
            scope, place = TopicScope.exactly(named), Place("offsets", named)
        places = dict.fromkeys(sources, place)
    else:
        starts, target_check = _batch_end(log_check, moves, state, place.batch_id, scope)
        places = {source: Place("offsets", ends) for source, ends in starts.items()}
    ids = known_log_ids(client, {tp.topic for tp in everything})
    source_plans = {}
    for source, offsets in sources.items():
        before = {tp: at for tp, at in offsets.items() if tp in scope}
        if before:
            start = {tp: at for tp, at in starts.get(source, {}).items() if tp in before}
            source_plans[source] = plan_positions(
                client,
                source,
                as_commits(before),
                places[source],
                source={},
                now=now,
                on_out_of_range=on_out_of_range,
                on_no_commit=on_no_commit,
                refusals=target_check.position_refusals(client, start, ids),
                log_ids=ids,
            )
    targets = {source: source_plan.after for source, source_plan in source_plans.items()}
    left_logs = log_check.left_logs(client, sources, source_plans.values())
    checkpoint_plan = plan_seek(checkpoint, targets, policy, request=request, left_logs=left_logs)
    return PipelinePlan((), checkpoint_plan.with_group_plans(source_plans.values()))


def _refuse_other_cluster(client: OffsetsClient, moves: KnownMoves, begun: ArchivedMove) -> None:
    """Refuse to finish a move on another cluster than that for which its offsets were planned."""
    what, remedy = f"the unfinished move (archive {begun.name})", moves.restore_command(begun.name)
    PlanRefusedError.raise_if(
        current_logs_refusals(client, what, begun.log_ids, remedy=f"take it back: {remedy}")
    )


def _batch_end(
    log_check: LogCheck, moves: KnownMoves, state: CheckpointState, batch_id: int, scope: TopicScope
) -> tuple[dict[str, Offsets], LogCheck]:
    """Return the end of an earlier batch by source, and its check: no commit of the group confirms it."""
    ends = finished_batch_ends(moves.checkpoint, batch_id)
    offsets = source_offsets_at_batch(batch_id, ends, state.kafka_offsets, scope)
    earlier = replace(state, batch_id=batch_id, entry=moves.checkpoint.entry(batch_id))
    return offsets, replace(log_check, state=earlier, whole_logs_only=True)


def movable_sources(state: CheckpointState) -> dict[str, Offsets]:
    """Return the offsets of a query's Kafka sources; raise an error for a query that has read no offsets."""
    if not state.kafka_offsets:
        raise CheckpointError(
            f"{state.location}: the newest finished batch has no Kafka offsets, or no batch has finished, so "
            f"there is nothing to move: check {parameter_text('checkpoint_location')}, or let the query's "
            "first batch finish"
        )
    return state.kafka_offsets
