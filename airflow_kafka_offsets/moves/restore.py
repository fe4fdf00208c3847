"""Plans the restore of a checkpoint and the groups that follow it, from a receipt, an archive or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import (
    plan_checkpoint_restore,
    plan_seek,
    refuse_past_failover,
)
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    Offsets,
    Positions,
    TopicPartition,
    as_commits,
    committed_offsets,
)
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy, RestoreMissingCommitPolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import GroupReceipt, Receipt
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.groups import plan_commits
from airflow_kafka_offsets.moves.reset import movable_sources
from airflow_kafka_offsets.moves.stale import with_stale_refusal
from airflow_kafka_offsets.readings.log_checks import LogCheck, current_logs_refusals, known_log_ids
from airflow_kafka_offsets.readings.places import read_file
from airflow_kafka_offsets.readings.positions import partitions_in_scope


def plan_restore_receipt(
    client: OffsetsClient,
    receipt: Receipt,
    checkpoint: SparkCheckpoint | None,
    selection: GroupSelection,
    *,
    origin: str = "receipt",
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: RestoreMissingCommitPolicy = "skip",
    policy: CheckpointPolicy | None = None,
    metadata: CommitMetadata = NO_METADATA,
    same_run: bool = False,
    allow_stale: bool = False,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """
    Plan to restore the offsets that a move has overwritten, from its receipt.

    :param checkpoint: the checkpoint that moved with the groups; without it, only the groups are restored.
    :param on_no_commit: for a partition that had no commit: ``skip`` leaves the partition alone, ``earliest``
        moves it to its log start.
    :param allow_stale: whether to undo a move that other moves or commits have followed, see
        :func:`~airflow_kafka_offsets.moves.stale.with_stale_refusal`.
    """
    if receipt.plan_only:
        raise PlanRefusedError(
            "the receipt is of a plan that was only shown, so there are no offsets to restore"
        )
    moved = receipt.checkpoint
    moves = None if checkpoint is None else ArchivedMoves(checkpoint)
    archive = _move_to_undo(client, moves, receipt, origin)
    recorded = receipt.log_ids
    if archive is not None and not archive.is_failover:
        # The offsets before a move may be of an earlier topic than those after it.
        recorded |= archive.left_logs
    log_check = LogCheck(allow_new_cluster, f"the {origin}", recorded, moves)
    if archive is not None and archive.has_failed_over:
        # The groups are on the mirror, and the offsets count on the cluster that the query goes back to.
        log_check = replace(log_check, moves=None)
    before = {group.group_id: group.before for group in receipt.groups if group.before}
    group_plans = _plan_groups(client, before, selection, origin, on_out_of_range, on_no_commit, log_check)
    if moved is None or moves is None:
        plan = _groups_alone(group_plans, moved, checkpoint)
    else:
        back = moved.offsets_moved({tp for positions in before.values() for tp in positions})
        plan = _with_checkpoint(client, group_plans, moves, back, archive, on_out_of_range, policy, log_check)
    return with_stale_refusal(
        plan,
        receipt,
        checkpoint=checkpoint,
        archive=archive,
        metadata=metadata,
        same_run=same_run,
        allow_stale=allow_stale,
    )


def _move_to_undo(
    client: OffsetsClient, moves: ArchivedMoves | None, receipt: Receipt, origin: str
) -> ArchivedMove | None:
    """Return the archive of a receipt's move, if any; refuse a move that cannot be undone here."""
    moved = receipt.checkpoint
    if moves is None or moved is None:
        return None
    location, archive = moves.checkpoint.location, moves.of_receipt(moved)
    if archive is None and moved.kind == "failover":
        raise PlanRefusedError(
            f"{location}: has no archive of the failover of the {origin}, whose offsets of before are of "
            "another cluster or topic: if it was made, move the pipeline back with a failover in the other "
            "direction"
        )
    # A new checkpoint at the same location belongs to another query.
    if moves.query_id != moved.query_id:
        raise PlanRefusedError(
            f"{location}: the receipt is of query {shorten(moved.query_id)}, but the checkpoint is of query "
            f"{moves.query_id}: the checkpoint was replaced since; restore only the groups with "
            f"{parameter_text('checkpoint_location', None)}"
        )
    if archive is None:
        return None
    # The offsets before a failover count on the cluster that the query is on again.
    if archive.undone and archive.left_logs.is_other_cluster(archive.log_ids):
        raise PlanRefusedError(
            f"move {archive} was taken back already, to cluster "
            f"{shorten(archive.left_logs.cluster)}: there is nothing to restore"
        )
    refuse_past_failover(moves, archive)
    if archive.has_failed_over:
        # An interrupted restore of a failover is finished on the mirror, which the receipt names.
        mirror = LogIds(receipt.log_ids.cluster)
        remedy = "move the pipeline back with a failover in the other direction"
        PlanRefusedError.raise_if(current_logs_refusals(client, f"the {origin}", mirror, remedy=remedy))
    return archive


def _groups_alone(
    group_plans: Sequence[OffsetPlan], moved: CheckpointPlan | None, checkpoint: SparkCheckpoint | None
) -> PipelinePlan:
    """Return the plan of groups whose checkpoint stays; a note says so, because its query stays too."""
    notes: tuple[str, ...] = ()
    if moved is not None:
        what = f"the checkpoint {shorten(moved.location)} moved with the group"
        notes = (f"{what}, but is not restored: no checkpoint is given",)
    elif checkpoint is not None:
        notes = (f"no checkpoint moved with the group, so {checkpoint.location} does not change",)
    return PipelinePlan([replace(each, notes=(*each.notes, *notes)) for each in group_plans])


def plan_restore_archive(
    client: OffsetsClient, name: str, checkpoint: SparkCheckpoint, selection: GroupSelection, **how: Any
) -> PipelinePlan:
    """Plan to undo a move, which may have stopped half-way; ``how`` as in :func:`plan_restore_receipt`."""
    moves = ArchivedMoves(checkpoint)
    archive = moves.find(name)
    before, after = moves.group_offsets(archive)
    groups = tuple(GroupReceipt(group, before[group], after.get(group, {})) for group in before)
    receipt = Receipt(groups, archive)
    return plan_restore_receipt(
        client, receipt, checkpoint, selection, origin=f"archive {archive.name}", **how
    )


def _plan_groups(
    client: OffsetsClient,
    before: Mapping[str, Positions],
    selection: GroupSelection,
    origin: str,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: RestoreMissingCommitPolicy,
    log_check: LogCheck,
) -> list[OffsetPlan]:
    if others := sorted(set(before) - set(selection.group_ids)):
        raise UsageError(
            f"the {origin} is of group {', '.join(map(repr, others))}, but {parameter_text('group_id')} "
            f"names {', '.join(map(repr, selection.group_ids))}: give the {origin.split()[0]} of this "
            "pipeline's reset"
        )
    targets: dict[str, Offsets] = {}
    without: dict[str, list[TopicPartition]] = {}
    for group, positions in before.items():
        without[group] = [tp for tp, offset in positions.items() if offset is None]
        targets[group] = {tp: offset for tp, offset in positions.items() if offset is not None}
        if on_no_commit == "earliest" and without[group]:
            targets[group] |= {tp: log.start for tp, log in client.log_ranges(without[group]).items()}
    remark = "had no committed offset, which cannot be restored; " + (
        "left alone" if on_no_commit == "skip" else "moved to its log start"
    )
    group_plans = []
    for group_plan in plan_commits(
        client,
        targets,
        source={"restore": origin},
        on_out_of_range=on_out_of_range,
        log_check=log_check,
        refuse_active=True,
    ):
        partitions = without[group_plan.group_id]
        skipped = dict(group_plan.skipped)
        if on_no_commit == "skip":
            skipped |= committed_offsets(client.committed(group_plan.group_id, partitions))
        group_plans.append(replace(group_plan.with_note(partitions, remark), skipped=skipped))
    return group_plans


def plan_restore_file(
    client: OffsetsClient,
    uri: str,
    checkpoint: SparkCheckpoint | None,
    selection: GroupSelection,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    policy: CheckpointPolicy | None = None,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """Plan to restore offsets that were saved in Kafka's CSV."""
    scope = selection.scope
    offsets = read_file(uri).offsets_by_group(selection.group_ids)
    _check_names(client, uri, offsets, selection)
    left_out = [tp for positions in offsets.values() for tp in positions if tp not in scope]
    within = {
        group: {tp: positions[tp] for tp in positions if tp in scope} for group, positions in offsets.items()
    }
    log_check = LogCheck(allow_new_cluster, moves=None if checkpoint is None else ArchivedMoves(checkpoint))
    group_plans = plan_commits(
        client,
        within,
        source={"restore": uri},
        on_out_of_range=on_out_of_range,
        log_check=log_check,
        refuse_active=True,
    )
    remark = "left out, because topics does not name these partitions"
    group_plans = [group_plan.with_note(left_out, remark) for group_plan in group_plans]
    if checkpoint is None:
        return PipelinePlan(group_plans)
    state = checkpoint.read()
    sources = movable_sources(state)
    everywhere = selection.with_scope(TopicScope())
    everywhere.assign_offsets(sources)  # refuses names that do not match
    targets = everywhere.to_sources(sources, offsets_after(group_plans))
    reached = {tp for positions in targets.values() for tp in positions}
    if not any(everywhere.to_sources(sources, within).values()):
        raise UsageError(
            f"{uri} has no partition of the checkpoint {checkpoint.location}: leave out "
            f"{parameter_text('checkpoint_location')} to move the group alone, or correct the file"
        )
    left_logs = replace(log_check, state=state).left_logs(client, sources, group_plans)
    checkpoint_plan = plan_seek(checkpoint, targets, policy, kind="restore", left_logs=left_logs)
    group_plans = [
        group_plan.with_note(
            [tp for tp in group_plan.after if tp not in reached],
            "not in the checkpoint, only the group moves",
        )
        for group_plan in group_plans
    ]
    return PipelinePlan.combine(group_plans, checkpoint_plan)


def _check_names(
    client: OffsetsClient, uri: str, offsets: Mapping[str, Offsets], selection: GroupSelection
) -> None:
    """Refuse names that do not exist; a saved file has no entry for a topic without commits."""
    saved = {tp.topic for positions in offsets.values() for tp in positions}
    keys = () if isinstance(selection.group_id, str) or selection.names_sources else selection.group_id or ()
    if absent := {*(selection.scope.topics or ()), *keys} - saved:
        partitions_in_scope(client, TopicScope(dict.fromkeys(sorted(absent))))
    if not any(tp in selection.scope for positions in offsets.values() for tp in positions):
        raise PlanRefusedError(
            f"{uri} has none of the partitions in {parameter_text('topics')}; it has topics "
            f"{', '.join(sorted(saved))}: correct {parameter_text('topics')}, or the file"
        )


def _with_checkpoint(
    client: OffsetsClient,
    group_plans: list[OffsetPlan],
    moves: ArchivedMoves,
    before: Mapping[str, Offsets],
    archive: ArchivedMove | None,
    on_out_of_range: OutOfRangePolicy,
    policy: CheckpointPolicy | None,
    log_check: LogCheck,
) -> PipelinePlan:
    """Return the plan of the groups, and of the checkpoint back to its offsets before the move."""
    checkpoint = moves.checkpoint
    if archive is not None and archive.has_failed_over:
        # Its offsets of before count on another cluster: files come back as they were, or it is refused.
        restored = plan_checkpoint_restore(checkpoint, archive.name, policy)
    else:
        undoes = None if archive is None or archive.undone else archive.name
        now = checkpoint.read().kafka_offsets
        back = {tp: at for offsets in before.values() for tp, at in offsets.items()}
        ids = known_log_ids(client, {tp.topic for tp in back})
        refusals = log_check.position_refusals(client, back, ids)
        compared = {
            source: OffsetPlan.make(
                source,
                offsets,
                as_commits({tp: now.get(source, {}).get(tp) for tp in offsets}),
                client.log_ranges(offsets),
                on_out_of_range=on_out_of_range,
                refusals=refusals,
                log_ids=ids,
            )
            for source, offsets in before.items()
        }
        targets = {source: source_plan.after for source, source_plan in compared.items()}
        left_logs = log_check.left_logs(client, now, [*compared.values(), *group_plans])
        # If offsets were clamped, they differ from the archived files, so the restore is a seek.
        if undoes is not None and targets == before:
            restored = plan_checkpoint_restore(checkpoint, undoes, policy, left_logs=left_logs)
        else:
            how: Any = {"undoes": undoes, "left_logs": left_logs}
            restored = plan_seek(checkpoint, targets, policy, kind="restore", **how)
        restored = restored.with_group_plans(compared.values())
    plan = PipelinePlan.combine(group_plans, restored)
    if restored.resumes:
        # Read again: another restore may have begun the resumed move meanwhile.
        moves = ArchivedMoves(checkpoint)
        plan = plan.with_before(moves.group_offsets(moves.find(restored.archive))[0])
    return plan
