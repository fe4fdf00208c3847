"""Starts a new checkpoint at the position of a group, or of the job's own store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from airflow_kafka_offsets.errors import CheckpointError, NoCommitError, PlanRefusedError, UsageError
from airflow_kafka_offsets.kafka.reader import PositionsReader
from airflow_kafka_offsets.model.offsets import (
    LogRange,
    OffsetRange,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    starting_points,
    summarize,
)
from airflow_kafka_offsets.model.parameters import StartMissingCommitPolicy, parse_choice
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.positions import partitions_in_scope
from airflow_kafka_offsets.spark.broker import open_broker_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

log = logging.getLogger(__name__)


OutOfRange = Literal["fail", "clamp"]
"""How to treat an offset outside the log."""


class OffsetStore(Protocol):
    """A job's own store, such as :class:`~airflow_kafka_offsets.spark.stores.SqlOffsetStore`."""

    def load(self, pipeline: str) -> Mapping[TopicPartition, int]:
        """Return the next offset of each partition, empty if nothing was saved yet."""


def starting_offsets(
    source: str | OffsetStore,
    *,
    checkpoint: str | SparkCheckpoint,
    topics: str | Sequence[str] | None = None,
    pipeline: str | None = None,
    options: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    client_config: Mapping[str, Any] | None = None,
    on_no_commit: StartMissingCommitPolicy = "fail",
    on_out_of_range: OutOfRange = "fail",
) -> dict[str, str]:
    """
    Return options that start a query with a *new* checkpoint at the position of a group or store.

    ``assign`` names every current partition of the topics, and ``startingOffsets`` has an offset for each. If
    a topic has commits, a partition without a commit was added later: it starts at its log start.

    ``assign`` does not include partitions that are added later. Once the checkpoint has its first batch, the
    query can use ``subscribe`` instead of these options.

    :param source: the consumer group's name, or a store.
    :param checkpoint: the new query's ``checkpointLocation``. A checkpoint with batches is refused: Spark
        would ignore the options.
    :param topics: topics, or ``topic:0,1``; required for a group. Default: the topics in the store.
    :param pipeline: the name under which the store keeps the offsets.
    :param options: options of Spark's Kafka source, to reach the brokers.
    :param spark: the session, to use its Kafka client.
    :param client_config: librdkafka's settings; used instead of ``options`` and ``spark``.
    :param on_no_commit: what to do about a topic without any commit: ``fail`` (default), ``earliest`` or
        ``latest``.
    :param on_out_of_range: ``fail`` (default), or ``clamp`` to the nearer end of the log and log it.
    :return: ``{"assign": ..., "startingOffsets": ...}``.
    :raises CheckpointError: if the checkpoint has batches already.
    :raises NoCommitError: if a topic has no commit and ``on_no_commit`` is ``fail``.
    :raises PlanRefusedError: if an offset is outside the log.
    """
    parse_choice(on_no_commit, StartMissingCommitPolicy, "on_no_commit")
    parse_choice(on_out_of_range, OutOfRange, "on_out_of_range")
    _refuse_started(checkpoint)
    with open_broker_client(options or {}, spark=spark, client_config=client_config) as kafka:
        if isinstance(source, str):
            what = f"group {source!r}"
            positions, known = _of_group(kafka, source, TopicScope.parse(topics))
        else:
            what = f"pipeline {pipeline!r} of the store"
            positions, known = _of_store(kafka, source, pipeline, TopicScope.parse(topics))
        logs = kafka.log_ranges(positions)
    offsets = _with_numbers(what, positions, known, logs, on_no_commit)
    start = _inside(what, offsets, logs, on_out_of_range)
    options_of_window = OffsetWindow({tp: OffsetRange(at, at) for tp, at in start.items()}).spark_options()
    return {key: options_of_window[key] for key in ("assign", "startingOffsets")}


def _refuse_started(checkpoint: str | SparkCheckpoint) -> None:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.storage import list_names

    if isinstance(checkpoint, str):
        checkpoint = SparkCheckpoint(checkpoint)
    batches = checkpoint.batches("offsets") | checkpoint.batches("commits")
    # Where a listing may be late, look for the first batch by its name.
    batches |= {0} if not batches and checkpoint.has("offsets", 0) else set()
    # Spark writes these files before the first batch, and would start from them.
    begun = list_names(checkpoint.fs, f"{checkpoint.root}/sources")
    if batches:
        raise CheckpointError(
            f"{checkpoint.location}: found batches up to {max(batches)}; expected a new checkpoint: Spark "
            "continues from these and ignores startingOffsets. To move the query, stop it and use "
            "ResetOffsetsOperator or airflow-kafka-offsets checkpoint seek; to start from the beginning, use "
            "another checkpointLocation"
        )
    if begun:
        raise CheckpointError(
            f"{checkpoint.location}: found the first offsets of a query (sources/) and no batch; expected a "
            "new checkpoint: Spark starts from those offsets and ignores startingOffsets. Nothing was "
            "processed: remove the directory"
        )


def _of_group(kafka: PositionsReader, group_id: str, scope: TopicScope) -> tuple[Positions, set[str]]:
    """Return the group's positions in the scope, and the topics in which it has any commit."""
    if scope.topics is None:
        raise UsageError(f"group {group_id!r}: topics is missing: name the topics that the query reads")
    wanted = partitions_in_scope(kafka, scope)
    # Of whole topics: if a topic has commits, a partition without a commit was added later.
    whole = partitions_in_scope(kafka, TopicScope(dict.fromkeys(scope.topics)))
    found = committed_offsets(kafka.committed(group_id, sorted({*wanted, *whole})))
    return {tp: found[tp] for tp in wanted}, {tp.topic for tp, offset in found.items() if offset is not None}


def _of_store(
    kafka: PositionsReader, store: OffsetStore, pipeline: str | None, scope: TopicScope
) -> tuple[Positions, set[str]]:
    """Return the store's positions in the scope, and the topics in which it has any offset."""
    if not pipeline:
        raise UsageError("pipeline is missing: expected the name under which the store keeps the offsets")
    saved = store.load(pipeline)
    topics = {tp.topic for tp in saved} if scope.topics is None else scope.topics
    if not topics:
        raise NoCommitError(
            f"pipeline {pipeline!r}: the store has no offsets for it: correct pipeline, or name topics= and "
            "set on_no_commit to earliest or latest for a first start"
        )
    wanted = scope.restricted_to(topics)
    partitions = {*partitions_in_scope(kafka, wanted), *(tp for tp in saved if tp in wanted)}
    return {tp: saved.get(tp) for tp in sorted(partitions)}, {tp.topic for tp in saved}


def _with_numbers(
    what: str,
    positions: Positions,
    known: set[str],
    logs: Mapping[TopicPartition, LogRange],
    on_no_commit: StartMissingCommitPolicy,
) -> Offsets:
    without = sorted({tp.topic for tp in positions} - known)
    if without and on_no_commit == "fail":
        raise NoCommitError(
            f"{what} has no offset for any partition of {', '.join(without)}: correct its name, or the "
            "brokers (Kafka also forgets a group without members, 7 days after its last commit by "
            "default); for a first start set on_no_commit to earliest or latest"
        )
    return starting_points(positions, logs, on_no_commit, known)


def _inside(
    what: str, offsets: Offsets, logs: Mapping[TopicPartition, LogRange], on_out_of_range: OutOfRange
) -> Offsets:
    outside = {tp: offset for tp, offset in offsets.items() if offset not in logs[tp]}
    if not outside:
        return offsets
    first = min(outside)
    each = f"{first} is at {outside[first]}, the log holds {logs[first].start} to {logs[first].end}"
    lost = sum(max(0, logs[tp].start - offset) for tp, offset in outside.items())
    if on_out_of_range == "fail":
        raise PlanRefusedError(
            f"{what} is outside the log on {summarize(outside)} ({each}), {lost} records are lost: Spark "
            "would fail at its first batch; set on_out_of_range to clamp to continue with the remaining "
            "records (a position beyond the end means another cluster, or a topic that was recreated)"
        )
    text = "Starting at the nearer end of the log on %s (%s), %d records are lost"
    log.warning(text, summarize(outside), each, lost)
    return {tp: min(max(offset, logs[tp].start), logs[tp].end) for tp, offset in offsets.items()}
