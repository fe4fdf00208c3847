"""Plans the failover of a pipeline to a mirror: its checkpoint and its groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archive import read_attachment
from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY, ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_failover
from airflow_kafka_offsets.errors import CheckpointError, OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.failover_plan import (
    FAILOVER_FILE,
    FailoverPlan,
    FailoverPolicy,
    TranslatedPartition,
    again_text,
)
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import offsets_after
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.text import describe_type, shorten
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.groups import plan_commits
from airflow_kafka_offsets.moves.reset import movable_sources
from airflow_kafka_offsets.readings.failover import (
    complete_failover_data,
    kept_failover_data,
    left_out_refusals,
    names_key,
    selected_sources,
    translate_sources,
)
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids
from airflow_kafka_offsets.readings.mirror import running_mirror
from airflow_kafka_offsets.readings.recorded_cluster import LAST_COMMIT, recorded_cluster, uncommitted_groups
from airflow_kafka_offsets.readings.renamed_topics import (
    compare_partition_counts,
    gather_records,
    renamed_sources,
    unread_refusals,
)


def plan_failover(
    source: OffsetsClient | None,
    target: OffsetsClient,
    checkpoint: SparkCheckpoint,
    selection: GroupSelection,
    mirror: Mirror,
    *,
    policy: FailoverPolicy,
) -> FailoverPlan:
    """
    Plan to continue a pipeline on a mirror of its cluster, from the newest committed batch.

    The same request finishes an interrupted failover, with the planned offsets. Other requests are refused
    until then.

    :param source: the old cluster; ``None`` if it does not answer.
    :param selection: the groups and topics of the pipeline, with the topic names of the old cluster.
        Partitions outside of ``topics`` stay as they are.
    """
    entered = target.cluster_id()
    request = failover_request(entered, selection, mirror)
    begun = begun_failover(checkpoint, request)
    if begun is not None:
        return resume_failover(begun, target, checkpoint, policy.checkpoint)
    # The translation takes time: a batch that ends meanwhile has another position, and is not moved.
    state = checkpoint.read_finished()
    sources = movable_sources(state)
    by_group = selection.assign_offsets(sources)
    kept, notes = kept_failover_data(checkpoint)
    clients = [target] if source is None else [target, source]
    recorded = recorded_cluster(checkpoint, kept, clients, by_group)
    left_logs = _cluster_to_leave(source, checkpoint, entered, recorded, mirror)
    usable = kept.on(left_logs.cluster)
    if kept.at and not usable.at:
        notes.append(f"the data kept beside the checkpoint is ignored: it is of cluster {kept.cluster}")
    moving = selected_sources(selection, sources)
    renames = left_logs.cluster == entered
    if renames:
        moving = renamed_sources(mirror, sources, moving)
        data, logs, missing = gather_records(target, moving, usable)
        translated = translate_sources(target, mirror, moving, data, logs, copies=False)
        translated = compare_partition_counts(target, translated)
    else:
        data, logs, missing = complete_failover_data(source, target, mirror, moving, usable)
        translated = translate_sources(target, mirror, moving, data, logs)
    if policy.on_unknown == "earliest":
        translated = [each.or_from_start() for each in translated]
    groups = _plan_groups(target, selection, translated, policy, left_logs)
    notes = [*missing, *notes, *uncommitted_groups(target if renames else source, by_group, groups)]
    after = _sources_after(selection, sources, translated, groups)
    refusals = _refusals(translated)
    ids = known_log_ids(target, {each.mirrored.topic for each in translated})
    if source is not None:
        left_logs = known_log_ids(source, {each.partition.topic for each in translated}, leaves=True)
    if renames:
        refusals += unread_refusals(target, mirror, moving, after)
    else:
        refusals += left_out_refusals(target, sources, selection.scope)
        if running := running_mirror(target, selection.group_ids, left_logs.cluster, ids.cluster):
            (notes if policy.allow_running_mirror else refusals).append(running)
    moved = plan_checkpoint_failover(
        checkpoint,
        after,
        policy.checkpoint,
        request=request,
        log_ids=ids,
        left_logs=left_logs,
        again=again_text(translated),
        refusals=refusals,
        state=state,
    )
    return replace(FailoverPlan.combine(groups, moved), translated=translated, notes=notes)


def failover_request(entered: str, selection: GroupSelection, mirror: Mirror) -> str:
    """Return the identity of a request to fail over to a cluster."""
    # A task and a command name the connection differently.
    names = replace(mirror, kafka_config_id="").as_json()
    return digest("failover", entered, selection.group_id, selection.scope.as_json(), names)


def begun_failover(checkpoint: SparkCheckpoint, request: str) -> ArchivedMove | None:
    """Return the failover that a request has begun, or has finished and after which the query has not run."""
    moves = ArchivedMoves(checkpoint)
    if unfinished := moves.begun_by(request):
        return unfinished
    newest = moves.newest
    if newest is None or not newest.has_failed_over or newest.request != request:
        return None
    return None if moves.has_run_since(newest) else newest


def _cluster_to_leave(
    source: OffsetsClient | None,
    checkpoint: SparkCheckpoint,
    entered: str,
    recorded: tuple[str, str],
    mirror: Mirror,
) -> LogIds:
    """
    Return the checkpoint's cluster; refuse the mirror itself, and a connection to a third cluster.

    The mirror may be the checkpoint's cluster if it names other topics.

    :param recorded: see :func:`~airflow_kafka_offsets.readings.recorded_cluster.recorded_cluster`.
    """
    known, record = recorded
    asked = "" if source is None else source.cluster_id()
    if known and asked and known not in (asked, entered):
        raise PlanRefusedError(
            f"{checkpoint.location} is on cluster {shorten(known)} according to {record}, but the "
            f"connection leads to {shorten(asked)}: correct the connection"
        )
    if entered and entered == (asked or known) and known in ("", entered) and mirror.topics:
        return LogIds(entered)
    if entered and entered in (known, asked):
        how = f"{record} was there" if known == entered else "both connections lead there"
        if known == entered != asked and record == LAST_COMMIT:
            how += "; if by mistake, delete the group's offsets there"
        raise PlanRefusedError(
            f"{checkpoint.location} is already on cluster {entered} ({how}): give the connection of the "
            "cluster to leave, and as mirror the cluster to go to; to move to another topic of this cluster, "
            f"name the topic ({names_key()})"
        )
    return LogIds(asked or known)


def _refusals(translated: Collection[TranslatedPartition]) -> list[str]:
    unknown: dict[tuple[str, bool], list[TopicPartition]] = {}
    for each in translated:
        if each.translation.offset is None:
            unknown.setdefault((each.translation.why, each.log is not None), []).append(each.partition)
    earliest = f", or set {parameter_text('on_unknown', 'earliest')} to read the mirror's whole log there"
    return [
        f"the position on the mirror is unknown on {summarize(partitions)}: {why}; correct the names of the "
        f"mirror{earliest if there else ''}"
        for (why, there), partitions in unknown.items()
    ]


def _plan_groups(
    target: OffsetsClient,
    selection: GroupSelection,
    translated: Collection[TranslatedPartition],
    policy: FailoverPolicy,
    left_logs: LogIds,
) -> list[OffsetPlan]:
    """Return the plans of the groups on the mirror; no plans if a position is unknown, which is refused."""
    offsets: dict[str, Offsets] = {}
    for each in translated:
        if each.translation.offset is None:
            return []
        if group := selection.group_of(each.source, each.partition.topic):
            offsets.setdefault(group, {})[each.mirrored] = each.translation.offset
    if_lost = (
        f"the mirror has deleted these records: set {parameter_text('on_out_of_range', 'clamp')} to "
        "continue from its log start"
    )
    return known_group_plans(target, offsets, left_logs, policy.on_out_of_range, if_lost)


def _sources_after(
    selection: GroupSelection,
    sources: Mapping[str, Offsets],
    translated: Collection[TranslatedPartition],
    groups: Sequence[OffsetPlan],
) -> dict[str, Offsets]:
    """Return the new offsets of each source: those of its groups' plans, which may have clamped them."""
    planned = offsets_after(groups)
    moved = {(each.source, each.partition): each for each in translated}
    after: dict[str, Offsets] = {}
    for name, offsets in sources.items():
        for tp, at in offsets.items():
            each = moved.get((name, tp))
            if each is None:
                after.setdefault(name, {})[tp] = at
            elif each.translation.offset is not None:
                by_group = planned.get(selection.group_of(name, tp.topic) or "", {})
                after.setdefault(name, {})[each.mirrored] = by_group.get(
                    each.mirrored, each.translation.offset
                )
    return after


def known_group_plans(
    target: OffsetsClient,
    offsets: Mapping[str, Offsets],
    left_logs: LogIds,
    on_out_of_range: OutOfRangePolicy = "fail",
    if_lost: str | None = None,
    remedy: str = "",
) -> list[OffsetPlan]:
    """
    Return the plans of the groups on the mirror, with translated offsets.

    :param remedy: for a topic that the mirror does not have, instead of another choice of topics.
    """
    return plan_commits(
        target,
        offsets,
        source={"failover": left_logs.cluster},
        on_out_of_range=on_out_of_range,
        # MirrorMaker copies the metadata of commits, so that these commits name the old cluster.
        log_check=LogCheck(allow_new_cluster=True, remedy=remedy),
        if_lost=if_lost,
        refuse_active=True,
    )


def resume_failover(
    move: ArchivedMove, target: OffsetsClient, checkpoint: SparkCheckpoint, policy: CheckpointPolicy
) -> FailoverPlan:
    """Return a plan that finishes a failover with its planned offsets."""
    moves = ArchivedMoves(checkpoint)
    before, after = moves.group_offsets(move)
    undo = f"undo the failover: {moves.restore_command(move.name)}"
    plans = known_group_plans(target, after, move.left_logs, remedy=undo)
    ids = known_log_ids(target, {tp.topic for offsets in move.after.values() for tp in offsets})
    moved = plan_checkpoint_failover(
        checkpoint,
        move.after,
        replace(policy, allow_stateful=True),
        request=move.request,
        log_ids=move.log_ids,
        left_logs=move.left_logs,
        refusals=other_logs_refusals(f"the failover (archive {move.name})", move.log_ids, ids),
    )
    was = _kept_translation(checkpoint, move, undo)
    return replace(FailoverPlan.combine(plans, move.resume(moved)), was=was).with_before(before)


def _kept_translation(checkpoint: SparkCheckpoint, move: ArchivedMove, undo: str) -> Mapping[str, Any]:
    """
    Return the translation in a failover's archive, as plain JSON.

    :raises CheckpointError: if it is gone or was changed; ``undo`` is a remedy.
    """
    text = read_attachment(checkpoint, move, FAILOVER_FILE)
    try:
        found = load_json(text or "null", FAILOVER_FILE, describe=describe_type)
    except OffsetsFormatError:
        found = None
    if isinstance(found, Mapping) and isinstance(found.get("kinds"), Mapping):
        return found
    raise CheckpointError(
        f"{checkpoint.name(f'{DIRECTORY}/{move.name}/{FAILOVER_FILE}')}: is "
        f"{'gone' if text is None else 'changed'} since it was kept: put it back, or {undo}"
    )
