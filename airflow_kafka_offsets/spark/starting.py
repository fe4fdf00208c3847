"""Starts a new checkpoint at the position of an old checkpoint, of a group, or of the job's own store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol

from airflow_kafka_offsets.annotation_types import SparkSession
from airflow_kafka_offsets.checkpoint.apply_move import wait_until_quiet
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import FinishedState
from airflow_kafka_offsets.checkpoint.state_store import is_stateful
from airflow_kafka_offsets.errors import CheckpointError, NoCommitError, PlanRefusedError, UsageError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD, parse_quiet_period
from airflow_kafka_offsets.model.commit_origins import commit_log_refusals
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    OffsetRange,
    Offsets,
    TopicPartition,
    starting_points,
    summarize,
)
from airflow_kafka_offsets.model.parameters import StartMissingCommitPolicy, parse_choice
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text, unexpected
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids
from airflow_kafka_offsets.readings.positions import partitions_in_scope
from airflow_kafka_offsets.spark.broker import open_broker_client

log = logging.getLogger(__name__)

OutOfRange = Literal["fail", "clamp"]
"""How to treat an offset outside the log."""


class OffsetStore(Protocol):
    """A job's own store, such as :class:`~airflow_kafka_offsets.spark.stores.SqlOffsetStore`."""

    def load(self, pipeline: str) -> Mapping[TopicPartition, int]:
        """Return the next offset of each partition, empty if nothing was saved yet."""


def starting_offsets(
    source: str | OffsetStore | SparkCheckpoint,
    *,
    checkpoint: str | SparkCheckpoint,
    query_source: str | int | None = None,
    topics: str | Sequence[str] | None = None,
    pipeline: str | None = None,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    client_config: Mapping[str, Any] | None = None,
    on_no_commit: StartMissingCommitPolicy = "fail",
    on_out_of_range: OutOfRange = "fail",
    allow_stateful: bool = False,
    quiet_period: timedelta | float | str = QUIET_PERIOD,
) -> dict[str, str]:
    """
    Return options that start a query with a *new* checkpoint where an old one, a group or a store is.

    With an old checkpoint, for a query that was changed so that Spark refuses the checkpoint, the query
    starts at the end of the newest committed batch. Stop the old query first. An old checkpoint with a
    pending batch is refused.

    ``assign`` names every current partition of the topics, and ``startingOffsets`` has an offset for each. If
    a topic has offsets, a partition without an offset was added later: it starts at 0.

    ``assign`` does not include partitions that are added later. Once the checkpoint has its first batch, the
    query can use ``subscribe`` instead of these options.

    :param source: the old query's checkpoint as a ``SparkCheckpoint``, the consumer group's name, or a store.
    :param checkpoint: the new query's ``checkpointLocation``. A checkpoint with batches is refused: Spark
        would ignore the options.
    :param query_source: index or name of a Kafka source of the old query; required if that has several.
    :param topics: topics, or ``topic:0,1``; required for a group. Default: the topics in the store or in the
        old checkpoint.
    :param pipeline: the name under which the store keeps the offsets.
    :param options: options of Spark's Kafka source, to reach the brokers.
    :param spark: the session, to use its Kafka client.
    :param client_config: librdkafka's settings; used instead of ``options`` and ``spark``.
    :param on_no_commit: what to do about a topic without any commit, or that the old checkpoint does not
        have: ``fail`` (default), ``earliest`` or ``latest``.
    :param on_out_of_range: ``fail`` (default), or ``clamp`` to the nearer end of the log and log it.
    :param allow_stateful: start without the state of the old query.
    :param quiet_period: time without a write to the old checkpoint after which the old query counts as
        stopped: seconds (10 by default), a timedelta or text such as ``30s``. If necessary, the call waits
        for it.
    :return: ``{"assign": ..., "startingOffsets": ...}``.
    :raises CheckpointError: if the new checkpoint has batches already, or the old one cannot be read.
    :raises MoveUnfinishedError: if a move of the old checkpoint was started and not finished.
    :raises NoCommitError: if a topic has no offset and ``on_no_commit`` is ``fail``.
    :raises PlanRefusedError: if an offset is outside the log; if the old query runs, has a pending batch
        or keeps state, or counts on another cluster; if the group was committed on another cluster, or before
        a topic was created again.
    :raises UsageError: if a parameter has no effect on this kind of source, or the old query has several
        Kafka sources and none is named.
    """
    parse_choice(on_no_commit, StartMissingCommitPolicy, "on_no_commit")
    parse_choice(on_out_of_range, OutOfRange, "on_out_of_range")
    _refuse_unused(source, query_source, pipeline, allow_stateful)
    _refuse_started(checkpoint)
    scope = TopicScope.parse(topics)
    if isinstance(source, SparkCheckpoint):
        wait_until_quiet(source, parse_quiet_period(quiet_period))
        name = None if query_source is None else str(query_source)
        batch_id, known = finished_position(source, name, allow_stateful=allow_stateful)
        what = f"batch {batch_id} of {source.location}"
    with open_broker_client(options or {}, spark=spark, client_config=client_config) as kafka:
        if isinstance(source, SparkCheckpoint):
            remedy = "move the old checkpoint to the new cluster first (FailOverOperator)"
            check = LogCheck(moves=ArchivedMoves(source), remedy=remedy)
            PlanRefusedError.raise_if(check.refusals(LogIds(kafka.cluster_id())))
        elif isinstance(source, str):
            what = f"group {source!r}"
            known = _committed(kafka, source, scope)
        else:
            what = f"pipeline {pipeline!r} of the store"
            known = _saved(source, pipeline, scope)
        start = _in_logs(kafka, what, known, scope, on_no_commit, on_out_of_range)
    options_of_window = OffsetWindow({tp: OffsetRange(at, at) for tp, at in start.items()}).spark_options()
    return {key: options_of_window[key] for key in ("assign", "startingOffsets")}


def _refuse_unused(source: object, query_source: object, pipeline: object, allow_stateful: object) -> None:
    if isinstance(source, str) and "://" in source:
        raise unexpected("source", source, "a group, or SparkCheckpoint(...) for an old checkpoint")
    if isinstance(source, str | SparkCheckpoint) and pipeline is not None:
        kind = "group" if isinstance(source, str) else "checkpoint"
        raise parameter_error("pipeline", f" has no effect: the source is a {kind}, not a store")
    if isinstance(source, SparkCheckpoint):
        return
    for name, given in (("query_source", query_source is not None), ("allow_stateful", allow_stateful)):
        if given:
            raise parameter_error(name, " has no effect: the source is not a SparkCheckpoint")


def _refuse_started(checkpoint: str | SparkCheckpoint) -> None:
    if isinstance(checkpoint, str):
        checkpoint = SparkCheckpoint(checkpoint)
    batches = checkpoint.batches("offsets") | checkpoint.batches("commits")
    # Where a listing may be late, look for the first batch by its name.
    if batches or checkpoint.has("offsets", 0):
        raise CheckpointError(
            f"{checkpoint.location}: found batches up to {max(batches, default=0)}; expected a new "
            "checkpoint: Spark continues from these and ignores startingOffsets. To move the query, stop it "
            "and use ResetOffsetsOperator or airflow-kafka-offsets checkpoint seek; to start from the "
            "beginning, use another checkpointLocation"
        )
    # Spark writes these files before the first batch, and would start from them.
    if checkpoint.list_names("sources"):
        raise CheckpointError(
            f"{checkpoint.location}: found the first offsets of a query (sources/) and no batch; expected a "
            "new checkpoint: Spark starts from those offsets and ignores startingOffsets. Nothing was "
            "processed: remove the directory"
        )


def finished_position(
    checkpoint: SparkCheckpoint, source: str | None = None, *, allow_stateful: bool = False
) -> tuple[int, Offsets]:
    """
    Return the newest committed batch and its offsets in one source, from which another query can continue.

    The state of the query and a pending batch are not passed on, so they are refused.
    """
    state = checkpoint.read_finished()
    ArchivedMoves(checkpoint).refuse_unfinished()
    refusals = [*state.orphans, *_pending(state)]
    if not allow_stateful and is_stateful(checkpoint):
        refusals.append(
            f"{checkpoint.location}: the query keeps state (state/), and a new checkpoint begins without "
            "it: windows, totals and joins lose the records that were read before; set "
            f"{parameter_text('allow_stateful', True)} if that is right for the new query, or let it read "
            "these records again"
        )
    PlanRefusedError.raise_if(refusals)
    return state.batch_id, _offsets_of_source(state, source)


def _pending(state: FinishedState) -> list[str]:
    if not state.pending:
        return []
    numbers, location = ", ".join(map(str, state.pending)), state.location
    return [
        f"{location}: batch {numbers} was begun and not finished: the sink may have its records already, and "
        f"the new query would write them again in other batches. Before the change, {state.finish_text}; "
        "or discard the batch if the sink allows that: "
        f"'airflow-kafka-offsets checkpoint seek {location} --to-current --on-pending-batch discard --sink "
        "SINK --execute'"
    ]


def _offsets_of_source(state: FinishedState, wanted: str | None) -> Offsets:
    location, known = state.location, state.kafka_offsets
    names = ", ".join(sorted(known)) or "none"
    if wanted is not None:
        if wanted in known:
            return known[wanted]
        raise parameter_error(
            "query_source",
            f": batch {state.batch_id} of {location} has no offsets of this Kafka source; its Kafka "
            f"sources: {names}",
            wanted,
        )
    if len(known) > 1:
        raise UsageError(
            f"{location}: the query has several Kafka sources ({names}), and each has its own position: "
            f"name one with {parameter_text('query_source', ...)}",
            parameter="query_source",
        )
    if not known:
        raise UsageError(state.no_kafka_offsets)
    return next(iter(known.values()))


def _committed(kafka: PositionsReader, group_id: str, scope: TopicScope) -> Offsets:
    if scope.topics is None:
        raise UsageError(f"group {group_id!r}: topics is missing: name the topics that the query reads")
    # Of whole topics: if a topic has commits, a partition without a commit was added later.
    whole = partitions_in_scope(kafka, TopicScope(dict.fromkeys(scope.topics)))
    log_ids = known_log_ids(kafka, {tp.topic for tp in whole})
    commits = kafka.committed(group_id, whole)
    allowed = parameter_text("allow_new_cluster", True)
    remedy = f"reset the group with {allowed} if the pipeline was moved there"
    PlanRefusedError.raise_if(commit_log_refusals(group_id, commits, log_ids, remedy=remedy))
    return {tp: commit.offset for tp, commit in commits.items() if commit is not None}


def _saved(store: OffsetStore, pipeline: str | None, scope: TopicScope) -> Offsets:
    if not pipeline:
        raise UsageError("pipeline is missing: expected the name under which the store keeps the offsets")
    saved = store.load(pipeline)
    if scope.topics is None and not saved:
        raise NoCommitError(
            f"pipeline {pipeline!r}: the store has no offsets for it: correct pipeline, or name topics= and "
            "set on_no_commit to earliest or latest for a first start"
        )
    return dict(saved)


def _in_logs(
    kafka: PositionsReader,
    what: str,
    known: Offsets,
    scope: TopicScope,
    on_no_commit: StartMissingCommitPolicy,
    on_out_of_range: OutOfRange,
) -> Offsets:
    """Return the offset in its log at which each partition of the scope, by default of ``known``, starts."""
    topics = {tp.topic for tp in known}
    wanted = scope.restricted_to(topics if scope.topics is None else scope.topics)
    partitions = {*partitions_in_scope(kafka, wanted), *(tp for tp in known if tp in wanted)}
    positions = {tp: known.get(tp) for tp in sorted(partitions)}
    logs = kafka.log_ranges(positions)
    without = sorted({tp.topic for tp in positions} - topics)
    if without and on_no_commit == "fail":
        raise NoCommitError(
            f"{what} has no offset for any partition of {', '.join(without)}: correct the names, or the "
            "brokers (Kafka also forgets a group without members, 7 days after its last commit by "
            "default); for a first start set on_no_commit to earliest or latest"
        )
    offsets = starting_points(positions, logs, on_no_commit, topics)
    outside = {tp: offset for tp, offset in offsets.items() if offset not in logs[tp]}
    if not outside:
        return offsets
    first = min(outside)
    each = f"{first} is at {outside[first]}, the log holds {logs[first].start} to {logs[first].end}"
    lost = sum(logs[tp].lost(offset) for tp, offset in outside.items())
    if on_out_of_range == "fail":
        raise PlanRefusedError(
            f"{what} is outside the log on {summarize(outside)} ({each}), with {plural(lost, 'record')} lost:"
            " Spark would fail at its first batch; set on_out_of_range='clamp' to continue with the other "
            "records (a position beyond the end means another cluster, a topic that was recreated, or a log "
            "that an unclean leader election has cut off)"
        )
    text = "Starting at the nearer end of the log on %s (%s), with %s lost"
    log.warning(text, summarize(outside), each, plural(lost, "record"))
    return {tp: min(max(offset, logs[tp].start), logs[tp].end) for tp, offset in offsets.items()}
