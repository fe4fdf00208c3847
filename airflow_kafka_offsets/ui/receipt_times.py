"""Reads the timestamps of the records at a receipt's offsets from the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.table import DELETED, furthest_moves, time_text
from airflow_kafka_offsets.readings.record_times import read_times_at

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_SKEW_MS = 3_600_000
"""Milliseconds by which a producer's clock may be ahead of Airflow's."""


def receipt_offsets(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[int, str], list[Any]]:
    """
    Return the offsets of a receipt's table whose times are read.

    :param rows: group, topic, partition, before, after, records, log start, log end and more.
    :return: by row and column (``before`` or ``after``), as plain JSON; of many rows only those that moved
        furthest.
    """
    shown, _ = furthest_moves(list(enumerate(rows)), _moved_by)
    return {
        (number, column): [topic, partition, offset, start, end]
        for number, (_, topic, partition, before, after, _, start, end, *_) in shown
        for column, offset in (("before", before), ("after", after))
        if None not in (offset, start, end)
    }


def _moved_by(row: tuple[int, tuple[Any, ...]]) -> int:
    _, (_, _, _, before, after, _, start, *_) = row
    return (after or 0) - (before if before is not None else start or 0)


def read_times(
    client: OffsetsClient, asked: Iterable[Sequence[Any]], made_ms: int, within: float
) -> dict[str, Any]:
    """
    Read the times at offsets of a receipt.

    :param asked: offsets as :func:`receipt_offsets` returns them.
    :param made_ms: when the receipt was made.
    :param within: seconds for reading.
    :return: ``times``, see :class:`~airflow_kafka_offsets.ui.responses.RecordTimesResponse`, and ``others``:
        the topics that now have another log.
    """
    wanted = [
        (TopicPartition(topic, partition), offset, LogRange(start, end))
        for topic, partition, offset, start, end in asked
    ]
    logs = client.log_ranges({tp for tp, _, _ in wanted})
    # Neither end of a log goes back.
    others = {tp for tp, _, then in wanted if logs[tp].start < then.start or logs[tp].end < then.end}
    there = {(tp, offset) for tp, offset, _ in wanted if tp not in others and offset in logs[tp]}
    times = read_times_at(client, there, within)
    found: list[str | None] = []
    topics = {tp.topic for tp in others}
    for tp, offset, then in wanted:
        at = times.get((tp, offset))
        # The record was already there, and is newer than the receipt.
        newer = at is not None and offset < then.end and at > made_ms + _SKEW_MS
        if newer:
            topics.add(tp.topic)
        if newer or tp in others:
            found.append(None)
        else:
            found.append(DELETED if offset < logs[tp].start else time_text(times, tp, offset))
    return {"times": found, "others": sorted(topics)}
