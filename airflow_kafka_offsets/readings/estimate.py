"""Estimates the effects of a move from the broker and the checkpoint's own history."""

from __future__ import annotations

import time
from dataclasses import replace

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.errors import BrokerError, KafkaOffsetsError
from airflow_kafka_offsets.model.estimate import (
    Between,
    Estimate,
    FinishedBatch,
    judge_retention,
    mean_size,
    measure_move,
    replay_seconds,
)
from airflow_kafka_offsets.model.failover_plan import FailoverPlan
from airflow_kafka_offsets.model.offsets import Logs, Offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import PartitionMove
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.readings.retention import read_headrooms, read_retentions

_WITHIN = 5.0
"""Seconds for a sample, a history or timestamps: no move depends on these numbers."""


def estimate(client: OffsetsClient, plan: PipelinePlan, checkpoint: SparkCheckpoint | None) -> Estimate:
    """Return the estimated effects of a plan; numbers that the broker does not give in time are missing."""
    moves = _moves(plan)
    logs = {move.topic_partition: move.log for move in moves}
    # The lowest offset of a partition that two sources read.
    after = {move.topic_partition: move.after for move in sorted(moves, key=lambda move: -move.after)}
    found = measure_move(moves)
    if isinstance(plan, FailoverPlan):
        found = replace(found, records_again=plan.again)
    seconds, why_seconds = _duration(found.lag, checkpoint)
    size, why_bytes = _size(client, after, logs, found.lag)
    time_lag, why_time_lag = _time_lag(client, after, logs)
    try:
        kept = read_retentions(client, {tp.topic for tp in after}, explain=str)
        rooms = read_headrooms(client, after, logs, kept, strict=False)
        verdict, within, why_retention = judge_retention(rooms, kept, seconds)
        found = replace(found, retention=verdict, begin_within=within)
    except KafkaOffsetsError as error:
        why_retention = str(error)
    why = {"seconds": why_seconds, "bytes": why_bytes, "time_lag": why_time_lag, "retention": why_retention}
    reasons = {name: reason for name, reason in why.items() if reason}
    return replace(found, bytes=size, seconds=seconds, time_lag=time_lag, reasons=reasons)


def _moves(plan: PipelinePlan) -> list[PartitionMove]:
    """Return the moves of the query's sources if a checkpoint moves, else those of the groups."""
    moves = [move for group in plan.group_plans for move in group.moves]
    if isinstance(plan, FailoverPlan):
        # The offsets before count on another cluster, and commits that a mirror has copied do not count.
        return [move._replace(before=move.after) for move in moves]
    if (checkpoint := plan.checkpoint_plan) is None:
        return moves
    # Two sources may read the same partition, each for a group of its own.
    logs = {move.topic_partition: move.log for move in moves}
    return [
        PartitionMove(tp, at, checkpoint.after[source][tp], logs[tp])
        for source, offsets in checkpoint.before.items()
        for tp, at in offsets.items()
        if tp in logs
    ]


def _duration(records: int, checkpoint: SparkCheckpoint | None) -> tuple[Between | None, str]:
    if checkpoint is None:
        return None, "a group without a checkpoint has no history of batches"
    try:
        history = read_history(checkpoint, within=_WITHIN)
    except KafkaOffsetsError as error:
        return None, str(error)
    batches = [
        FinishedBatch(batch.records, batch.duration)
        for batch in history.batches
        if batch.records is not None and batch.duration is not None and batch.moved_in is None
    ]
    found = replay_seconds(records, batches)
    return (None, found) if isinstance(found, str) else (found, "")


def _size(client: OffsetsClient, after: Offsets, logs: Logs, records: int) -> tuple[int | None, str]:
    if not records:
        return 0, ""
    most = sorted(after, key=lambda tp: logs[tp].end - after[tp], reverse=True)[:8]
    samples: list[list[int]] = []
    end = time.monotonic() + _WITHIN
    try:
        for place in (0.0, 0.33, 0.67, 0.9):  # shares of the range of offsets to read
            ranges = {tp: logs[tp].end - after[tp] for tp in most if logs[tp].end > after[tp]}
            offsets = {tp: after[tp] + int(place * left) for tp, left in ranges.items()}
            left = end - time.monotonic()
            if left <= 0:
                break
            samples += client.record_sizes(offsets, within=left).values()
    except BrokerError as error:
        return None, f"the sizes of records are unknown: {error}"
    mean = mean_size(samples)
    if isinstance(mean, str):
        return None, mean
    how = f"by a sample of {plural(sum(map(len, samples)), 'record')}, before compression"
    return int(float(f"{mean * records:.2g}")), how  # two significant digits


def _time_lag(client: OffsetsClient, after: Offsets, logs: Logs) -> tuple[float | None, str]:
    inside = {tp: offset for tp, offset in after.items() if logs[tp].start <= offset < logs[tp].end}
    try:
        times = client.record_times(inside, within=_WITHIN)
    except BrokerError as error:
        return None, str(error)
    oldest = [at for at in times.values() if at is not None]
    why = "not all records at the targets could be read" if len(oldest) < len(inside) else ""
    return max(0.0, time.time() - min(oldest) / 1000) if oldest else None, why
