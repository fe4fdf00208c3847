"""Plans to put back a checkpoint and the groups that follow it: from a receipt, an archive or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.checkpoint.archive import Archive, find_archive, read_archives
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek, plan_undo
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import (
    CheckpointPlan,
    CheckpointPolicy,
    CheckpointReceipt,
    read_checkpoint_receipt,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupOffsets, Groups
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition, committed_offsets
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy, RestoreMissingCommitPolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan, offsets_after
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.commit import plan_commits
from airflow_kafka_offsets.moves.group_reset import active_groups
from airflow_kafka_offsets.moves.reset import moving_sources
from airflow_kafka_offsets.moves.stale import judge_stale
from airflow_kafka_offsets.readings.known_moves import kept_groups
from airflow_kafka_offsets.readings.log_checks import LogCheck
from airflow_kafka_offsets.readings.log_ids import known_log_ids
from airflow_kafka_offsets.readings.places import read_file
from airflow_kafka_offsets.readings.positions import partitions_in

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_restore_receipt(
    client: OffsetsClient,
    value: object,
    checkpoint: SparkCheckpoint | None,
    named: Groups,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: RestoreMissingCommitPolicy = "skip",
    policy: CheckpointPolicy | None = None,
    by: CommitMetadata | None = None,
    own: bool = False,
    allow_stale: bool = False,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """
    Plan to put back what a receipt says was overwritten.

    :param value: the receipt, as the reset returned it.
    :param checkpoint: the checkpoint that moved along; without it only the groups are restored.
    :param on_no_commit: for a partition that had no commit: ``skip`` leaves it where it is, ``earliest``
        moves it to its log start.
    :param by: who restores.
    :param own: whether the move is of the same run.
    :param allow_stale: whether a move may be taken back that others have followed, see
        :func:`~airflow_kafka_offsets.moves.stale.judge_stale`.
    :param allow_new_cluster: whether the offsets are known to be right on a cluster, or topic, that is
        another one than that of the receipt.
    """
    groups = read_receipt(value)
    if any(group.plan_only for group in groups):
        raise PlanRefusedError("the receipt is of a plan that was only shown, so there is nothing to restore")
    before = {group.group_id: group.before for group in groups if group.before}
    kept = read_checkpoint_receipt(value)
    then = UNKNOWN_LOGS if kept is None else kept.log_ids
    for group in groups:
        then |= group.log_ids
    log_check = LogCheck(allow_new_cluster, "the receipt", then, checkpoint)
    plans = _plan_groups(client, before, named, "receipt", on_out_of_range, on_no_commit, log_check)
    judged = partial(
        judge_stale,
        moved_to={group.group_id: group.after for group in groups},
        by=by or CommitMetadata(),
        own=own,
        allow=allow_stale,
    )
    if kept is None or checkpoint is None:
        remarks = []
        if kept is not None:
            moved = f"the checkpoint {shorten(kept.location)} moved with it"
            remarks = [f"{moved}, and is not moved back: no checkpoint is given"]
        elif checkpoint is not None:
            remarks = [f"no checkpoint moved with it, so {checkpoint.location} stays as it is"]
        remarked = PipelinePlan([replace(plan, notes=(*plan.notes, *remarks)) for plan in plans])
        return judged(remarked, sources_to={}, checkpoint=None, archive=None)
    query_id = checkpoint.read().query_id
    if query_id != kept.query_id:
        raise PlanRefusedError(
            f"{checkpoint.location}: the receipt is of query {shorten(kept.query_id)}, and the checkpoint is "
            f"of query {query_id}: the checkpoint was replaced since; restore the groups alone with "
            "checkpoint_location=None"
        )
    archive = archive_of(read_archives(checkpoint), kept)
    restored = _restored_checkpoint(client, checkpoint, kept, archive, on_out_of_range, policy, log_check)
    plan = _with_first_before(PipelinePlan.make(plans, restored), checkpoint)
    return judged(plan, sources_to=kept.after, checkpoint=checkpoint, archive=archive)


def plan_restore_archive(
    client: OffsetsClient,
    name: str,
    checkpoint: SparkCheckpoint,
    named: Groups,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: RestoreMissingCommitPolicy = "skip",
    policy: CheckpointPolicy | None = None,
    allow_stale: bool = False,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """
    Plan to take back a move of a checkpoint and its groups, also one that has stopped half-way.

    :param name: of the move's archive.
    :param on_no_commit: see :func:`plan_restore_receipt`; ``allow_stale`` and ``allow_new_cluster`` likewise.
    :raises CheckpointError: if there is no such archive.
    """
    archive = find_archive(checkpoint, name)
    before, after = kept_groups(checkpoint, archive)
    origin = f"archive {archive.name}"
    log_check = LogCheck(allow_new_cluster, origin, archive.log_ids, checkpoint)
    plans = _plan_groups(client, before, named, origin, on_out_of_range, on_no_commit, log_check)
    kept = CheckpointReceipt(
        checkpoint.location, archive.query_id, archive.before, archive.after, archive.name
    )
    restored = _restored_checkpoint(client, checkpoint, kept, archive, on_out_of_range, policy, log_check)
    return judge_stale(
        _with_first_before(PipelinePlan.make(plans, restored), checkpoint),
        after,
        archive.after,
        checkpoint=checkpoint,
        archive=archive,
        by=CommitMetadata(),
        allow=allow_stale,
    )


def _with_first_before(plan: PipelinePlan, checkpoint: SparkCheckpoint) -> PipelinePlan:
    """Return a plan that goes on with an interrupted undo with what the groups held before that began."""
    undo = plan.checkpoint
    if undo is None or not undo.resumes:
        return plan
    before, _ = kept_groups(checkpoint, find_archive(checkpoint, undo.archive))
    return plan.with_before(before)


def _plan_groups(
    client: OffsetsClient,
    before: Mapping[str, Positions],
    named: Groups,
    origin: str,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: RestoreMissingCommitPolicy,
    log_check: LogCheck,
) -> list[OffsetPlan]:
    if others := sorted(set(before) - set(named.ids)):
        raise UsageError(
            f"the {origin} is of group {', '.join(map(repr, others))}, and group_id names "
            f"{', '.join(map(repr, named.ids))}: give the {origin.split()[0]} of this pipeline's reset"
        )
    targets: dict[str, Offsets] = {}
    without: dict[str, list[TopicPartition]] = {}
    for group, positions in before.items():
        without[group] = [tp for tp, offset in positions.items() if offset is None]
        targets[group] = {tp: offset for tp, offset in positions.items() if offset is not None}
        if on_no_commit == "earliest" and without[group]:
            targets[group] |= {tp: log.start for tp, log in client.log_ranges(without[group]).items()}
    plans = _moves(client, targets, {"restore": origin}, on_out_of_range, log_check)
    remark = "had no committed offset, which cannot be restored; " + (
        "left where it is" if on_no_commit == "skip" else "moved to its log start"
    )
    return [
        replace(
            plan.noting(without[plan.group_id], remark),
            skipped={
                **plan.skipped,
                **(_now(client, plan.group_id, without[plan.group_id]) if on_no_commit == "skip" else {}),
            },
        )
        for plan in plans
    ]


def _now(client: OffsetsClient, group_id: str, partitions: Sequence[TopicPartition]) -> Positions:
    return committed_offsets(client.committed(group_id, partitions))


def plan_restore_file(
    client: OffsetsClient,
    uri: str,
    checkpoint: SparkCheckpoint | None,
    named: Groups,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    policy: CheckpointPolicy | None = None,
    allow_new_cluster: bool = False,
) -> PipelinePlan:
    """
    Plan to put back offsets that were saved in Kafka's CSV.

    :param checkpoint: moved along, if one is given.
    :param allow_new_cluster: whether the offsets are known to be right on another cluster, or topic, than
        that of the group's last commit.
    :raises UsageError: if the file cannot be read.
    :raises UnknownTopicPartitionError: if neither the file nor the broker has a topic that is named.
    :raises PlanRefusedError: if the file has nothing of what is named.
    :raises OffsetsFormatError: if it is not Kafka's CSV, or has no line for a group.
    """
    scope = named.scope
    offsets = read_file(uri).of_groups(named.ids)
    _check_names(client, uri, offsets, named)
    left_out = [tp for positions in offsets.values() for tp in positions if tp not in scope]
    within = {
        group: {tp: positions[tp] for tp in positions if tp in scope} for group, positions in offsets.items()
    }
    plans = _moves(
        client, within, {"restore": uri}, on_out_of_range, LogCheck(allow_new_cluster, checkpoint=checkpoint)
    )
    plans = [plan.noting(left_out, "left out, since topics does not name it") for plan in plans]
    if checkpoint is None:
        return PipelinePlan(plans)
    sources = moving_sources(checkpoint)
    everywhere = named.within(TopicScope())
    everywhere.of(sources)  # refuses names that do not fit
    targets = everywhere.to_sources(sources, offsets_after(plans))
    reached = {tp for positions in targets.values() for tp in positions}
    outside = [tp for plan in plans for tp in plan.after if tp not in reached]
    checkpoint_plan = plan_seek(checkpoint, targets, policy, kind="undo")
    plans = [
        plan.noting([tp for tp in outside if tp in plan.after], "not in the checkpoint, only the group moves")
        for plan in plans
    ]
    return PipelinePlan.make(plans, checkpoint_plan)


def _check_names(client: OffsetsClient, uri: str, offsets: Mapping[str, Offsets], named: Groups) -> None:
    """Refuse names that are not there; a topic of which nothing was committed is in no file."""
    saved = {tp.topic for positions in offsets.values() for tp in positions}
    keys = () if isinstance(named.group_id, str) or named.names_sources else named.group_id or ()
    if absent := {*(named.scope.topics or ()), *keys} - saved:
        partitions_in(client, TopicScope(dict.fromkeys(sorted(absent))))
    if not any(tp in named.scope for positions in offsets.values() for tp in positions):
        raise PlanRefusedError(
            f"{uri} has nothing of what topics names, it has {', '.join(sorted(saved))}: correct topics, or "
            "the file"
        )


def _restored_checkpoint(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    kept: CheckpointReceipt,
    archive: Archive | None,
    on_out_of_range: OutOfRangePolicy,
    policy: CheckpointPolicy | None,
    log_check: LogCheck,
) -> CheckpointPlan:
    if archive is not None and archive.fails_over:
        # Its offsets of before count on another cluster: files come back as they were, or it is refused.
        return plan_undo(checkpoint, archive.name, policy)
    now = checkpoint.read().kafka_offsets
    ids = known_log_ids(client, {tp.topic for offsets in kept.before.values() for tp in offsets})
    refusals = log_check.refusals(ids)
    plans = {
        source: OffsetPlan.make(
            source,
            offsets,
            {tp: now.get(source, {}).get(tp) for tp in offsets},
            client.log_ranges(offsets),
            on_out_of_range=on_out_of_range,
            refusals=refusals,
            log_ids=ids,
        )
        for source, offsets in kept.before.items()
    }
    targets = {source: plan.after for source, plan in plans.items()}
    undoes = None if archive is None or archive.undone else archive.name
    if undoes is not None and targets == kept.before:
        checkpoint_plan = plan_undo(checkpoint, undoes, policy)
    else:
        checkpoint_plan = plan_seek(checkpoint, targets, policy, kind="undo", undoes=undoes)
    return checkpoint_plan.judged(plans.values())


def archive_of(archives: Sequence[Archive], kept: CheckpointReceipt) -> Archive | None:
    """Return the archive of a receipt's move, ``None`` if it changed no file."""
    # Of a move that was refused there is a receipt and no archive, and a later one may have taken its name.
    for archive in archives:
        if (archive.name, archive.before, archive.after) == (kept.archive, kept.before, kept.after):
            return archive
    return None


def undo_of(archives: Sequence[Archive], moved: Archive) -> Archive | None:
    """Return the newest move that has taken another one back, ``None`` if none has changed a file for it."""
    return next((each for each in reversed(archives) if each.undoes == moved.name and each.done), None)


def _moves(
    client: OffsetsClient,
    targets: Mapping[str, Offsets],
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy,
    log_check: LogCheck,
) -> list[OffsetPlan]:
    refusals = active_groups(client, targets)
    plans = plan_commits(
        client,
        GroupOffsets(targets),
        source=source,
        on_out_of_range=on_out_of_range,
        log_check=log_check,
    )
    return [
        replace(plan, refusals=tuple(dict.fromkeys((*plan.refusals, *refusals.get(plan.group_id, ())))))
        for plan in plans
    ]
