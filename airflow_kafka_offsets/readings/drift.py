"""Comparison of a checkpoint's positions, its groups' positions and the logs, for one or many pipelines."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import (
    CheckpointError,
    DriftError,
    PlanRefusedError,
    UnknownTopicPartitionError,
    UsageError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import log_ids_of
from airflow_kafka_offsets.model.drift import (
    COMMIT_DUE,
    REPORT_VERSION,
    DriftReport,
    NewestBatch,
    reports_json,
)
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commits, Logs, Offsets, TopicPartition, committed_offsets
from airflow_kafka_offsets.model.partition_state import PartitionState, offsets_to_read
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import (
    LogCheck,
    known_log_ids,
    moved_topics,
    recreated_partitions,
)
from airflow_kafka_offsets.readings.positions import (
    assign_offsets,
    existing_partitions,
    partitions_in_scope,
    refuse_missing_partitions,
)
from airflow_kafka_offsets.readings.retention import read_headrooms, read_retentions


def pipeline_drift(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    selection: GroupSelection,
    *,
    grace: timedelta = timedelta(0),
    min_headroom: float | None = None,
    ask_retention: bool = True,
) -> list[DriftReport]:
    """
    Compare the groups of one pipeline with its checkpoint and with the logs, without changing anything.

    A partition that the broker does not have is a verdict; another cluster is an error. Before the
    checkpoint's first finished batch, the report shows only the groups' positions.

    :param grace: how long after the end of a batch its commit may be missing.
    :param min_headroom: required headroom in seconds; ``None`` does not measure headroom, which otherwise
        needs the rights to describe the topics' settings and to read their records.
    :param ask_retention: whether to ask the broker for its ``offsets.retention.minutes``.
    """
    state = checkpoint.read()
    # Before its first finished batch, the query was not moved yet.
    moves = KnownMoves(checkpoint, () if state.batch_id is None else None)
    unfinished = moves.unfinished()
    targets = _targets(state, selection)
    committed = _committed(client, state, targets, selection)
    # Without a second read, an active pipeline could be reported as a group ahead of its checkpoint.
    if _ahead(committed, targets):
        # The query may have finished and committed a batch after the checkpoint was read.
        state = checkpoint.read()
        targets = _targets(state, selection)
    now = _log_ids(client, moves, committed)
    # The logs are read last, so that no position of an active pipeline is beyond the log end.
    logs = _log_ranges(client, set().union(*committed.values(), *targets.values()))
    batch = newest_batch(checkpoint, state)
    minutes = client.offsets_retention_minutes() if ask_retention else None
    checked_at = datetime.now(tz=timezone.utc)
    kept = {} if min_headroom is None else read_retentions(client, {tp.topic for tp in logs})
    recovery = moves.unfinished_recovery(state.kafka_offsets, committed)
    reports = []
    for group, commits in committed.items():
        wanted = targets.get(group, {})
        in_logs = {tp: offset for tp, offset in wanted.items() if tp in logs}
        again = recreated_partitions(client, moves, state, in_logs, commits, now)
        states = _partition_states(state, commits, wanted, logs, again, min_headroom)
        if min_headroom is not None:
            rooms = read_headrooms(client, offsets_to_read(states), logs, kept, min_headroom=min_headroom)
            states = tuple(each._replace(headroom=rooms.get(each.topic_partition)) for each in states)
        overdue = frozenset[TopicPartition]()
        if grace and any(each.verdict in COMMIT_DUE for each in states):
            due = _due_offsets(moves, state, checked_at - grace)
            overdue = _overdue(group, selection, due, commits, wanted)
        reports.append(
            DriftReport(
                group_id=group,
                batch=batch,
                partitions=states,
                checked_at=checked_at,
                grace=grace,
                overdue=overdue,
                made_by=tuple(dict.fromkeys(filter(None, map(CommitMetadata.of, commits.values())))),
                retention_minutes=minutes,
                unfinished_move=None if unfinished is None else str(unfinished),
                unfinished_recovery=recovery,
            )
        )
    return reports


def _due_offsets(moves: KnownMoves, state: CheckpointState, due_at: datetime) -> Mapping[str, Offsets]:
    """
    Return where the newest batch ended that has finished before a time: source -> offsets.

    Empty if there is no such batch, or if a move since then has changed where the query is.
    """
    checkpoint, first, newest = moves.checkpoint, datetime.min.replace(tzinfo=timezone.utc), moves.newest
    if newest is not None and newest.created_at > due_at.timestamp():
        return {}
    finished = sorted(state.planned & state.committed)
    # Batches end in order. The time of a file that is gone, or of a storage without times, is unknown.
    ended_before = bisect(finished, due_at, key=lambda number: checkpoint.ended_at(number) or first)
    number = finished[ended_before - 1] if ended_before else None
    if number is None or checkpoint.ended_at(number) is None:
        return {}
    text = checkpoint.read_text(f"offsets/{number}")
    return {} if text is None else parse_offset_log(text, checkpoint.name(f"offsets/{number}")).kafka_offsets


def _overdue(
    group: str, selection: GroupSelection, due: Mapping[str, Offsets], commits: Commits, wanted: Offsets
) -> frozenset[TopicPartition]:
    """Return the partitions in which a group is before the end of a batch that must be committed by now."""
    ends = {
        tp: offset
        for source, offsets in due.items()
        for tp, offset in offsets.items()
        if selection.group_of(source, tp.topic) == group and offset <= wanted.get(tp, -1)
    }
    found = committed_offsets({tp: commits.get(tp) for tp in ends})
    return frozenset(tp for tp, offset in ends.items() if (at := found[tp]) is None or at < offset)


def _partition_states(
    state: CheckpointState,
    commits: Commits,
    wanted: Offsets,
    logs: Logs,
    recreated: Collection[TopicPartition],
    min_headroom: float | None,
) -> tuple[PartitionState, ...]:
    read = {tp.topic for offsets in state.kafka_offsets.values() for tp in offsets}
    positions = committed_offsets(commits)
    return tuple(
        PartitionState(
            tp,
            positions.get(tp),
            logs.get(tp),
            checkpoint=wanted.get(tp),
            min_headroom=min_headroom or 0.0,
            recreated=tp in recreated,
            is_read=not read or tp.topic in read,
            other_query=CommitMetadata.of(commits.get(tp)).query not in ("", state.query_id),
        )
        for tp in sorted({*commits, *wanted})
    )


def _targets(state: CheckpointState, selection: GroupSelection) -> Mapping[str, Offsets]:
    """Return the target offsets of each group; empty before the first finished batch."""
    if state.batch_id is None:
        return {}
    if not state.kafka_offsets:
        raise CheckpointError(state.no_kafka_offsets)
    try:
        return assign_offsets(selection, state.kafka_offsets)
    except PlanRefusedError as error:
        raise UsageError("; ".join(error.refusals)) from error


def _committed(
    client: OffsetsClient, state: CheckpointState, targets: Mapping[str, Offsets], selection: GroupSelection
) -> dict[str, Commits]:
    if state.batch_id is None:
        scopes = (
            dict.fromkeys(selection.group_ids, selection.scope)
            if selection.names_sources
            else selection.scopes()
        )
        if topics := {topic for partitions in scopes.values() for topic in partitions.topics or ()}:
            partitions_in_scope(client, selection.scope.restricted_to(topics))
            refuse_missing_partitions(client, selection.scope.explicit_partitions)
        return {
            group: {
                tp: commit for tp, commit in client.committed_everywhere(group).items() if tp in partitions
            }
            for group, partitions in scopes.items()
        }
    read = {tp for offsets in state.kafka_offsets.values() for tp in offsets}
    on_broker = client.partitions({tp.topic for offsets in targets.values() for tp in offsets})
    found: dict[str, Commits] = {}
    for group, offsets in targets.items():
        here = selection.scope.restricted_to(tp.topic for tp in offsets).partitions_on_broker(on_broker)
        # A partition that another source reads belongs to another group; it was not added.
        found[group] = client.committed(group, {*offsets, *(tp for tp in here if tp not in read)})
        if selection.scope.topics is None:
            topics = {tp.topic for tp in read}
            everywhere = client.committed_everywhere(group)
            others = {tp: commit for tp, commit in everywhere.items() if tp.topic not in topics}
            found[group] = {**found[group], **others}
    return found


def _log_ids(client: OffsetsClient, moves: KnownMoves, committed: Mapping[str, Commits]) -> LogIds:
    """Return the present ids of the logs; refuse another cluster."""
    now = LogIds(client.cluster_id())
    remedy = (
        f"commit or reset with {parameter_text('allow_new_cluster', True)} if the pipeline was moved there"
    )
    check = LogCheck(moves=moves, remedy=remedy)
    topics = set[str]()
    for group, commits in committed.items():
        DriftError.raise_if(check.refusals(now, group, commits))
        topics.update(log_ids_of(commits, now).topics, moved_topics(moves, commits).topics)
    return known_log_ids(client, topics) if topics else now


def _ahead(committed: Mapping[str, Commits], targets: Mapping[str, Offsets]) -> bool:
    return any(
        commit is not None and commit.offset > targets.get(group, {}).get(tp, 0)
        for group, commits in committed.items()
        for tp, commit in commits.items()
    )


def _log_ranges(client: OffsetsClient, wanted: set[TopicPartition]) -> Logs:
    """Return the ranges of the logs, without partitions that the broker does not have."""
    wanted = existing_partitions(client, wanted)
    try:
        return client.log_ranges(wanted)
    except UnknownTopicPartitionError as error:
        # A topic was deleted between the two requests.
        if wanted.isdisjoint(error.missing):
            raise
        return client.log_ranges(wanted.difference(error.missing))


def newest_batch(checkpoint: SparkCheckpoint, state: CheckpointState) -> NewestBatch:
    """Return the newest committed batch of a checkpoint that was read."""
    ended_at = None
    if state.batch_id is not None:
        ended_at = checkpoint.ended_at(state.batch_id)
        if ended_at is None and state.batch_timestamp_ms is not None:
            # The batch was planned before it ended, so the grace can only be shorter.
            ended_at = datetime.fromtimestamp(state.batch_timestamp_ms / 1000, tz=timezone.utc)
    known = (state.location, state.query_id, state.batch_id, state.pending_batch_id)
    return NewestBatch(*known, ended_at, state.warnings)


@dataclass(frozen=True)
class CheckedPipeline:
    """The drift check of one pipeline: a report for each group, or the error and whether a retry may help."""

    pipeline: KafkaPipeline
    reports: tuple[DriftReport, ...] = ()
    error: str | None = None
    retriable: bool = False

    @property
    def drifted(self) -> bool:
        """Whether anything counts as drift."""
        return any(report.drifted for report in self.reports)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON: the five names, ``drifted``, ``groups``, ``error`` and ``retriable``."""
        names = {name: plain_names(self.pipeline[name]) for name in PIPELINE_PARAMETERS}
        return {**names, **reports_json(self.reports), "error": self.error, "retriable": self.retriable}

    def failures(self) -> list[str]:
        """Return a line for each drifted group, or the reason why the pipeline could not be checked."""
        if self.error is not None:
            named = self.pipeline.group_id
            groups = sorted({*named.values()}) if isinstance(named, Mapping) else [str(named)]
            names = ", ".join(repr(shorten(group)) for group in groups)
            return [f"group {names} could not be checked: {self.error}"]
        return ["; ".join([report.summary(), *report.advice]) for report in self.reports if report.drifted]


def pipelines_json(checked: Sequence[CheckedPipeline]) -> dict[str, Any]:
    """Return the report on all pipelines as plain JSON."""
    return {
        "version": REPORT_VERSION,
        "drifted": any(one.drifted for one in checked),
        "pipelines": [one.as_json() for one in checked],
    }
