"""Reads the timestamps of the records at a receipt's offsets from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.table import DELETED, END, furthest_moves
from airflow_kafka_offsets.readings.record_times import read_times_at

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_SKEW_MS = 3_600_000
"""Milliseconds by which a producer's clock may be ahead of Airflow's."""


class ReceiptOffset(NamedTuple):
    """An offset of a receipt."""

    topic_partition: TopicPartition
    offset: int
    log: LogRange
    """The log range when the receipt was made."""


def receipt_offsets(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[int, str], list[Any]]:
    """
    Return the offsets of a receipt's table whose times are read.

    :param rows: group, topic, partition, before, after, records, log start and log end.
    :return: by row and column (``before`` or ``after``), as plain JSON; of many rows only those that moved
        furthest.
    """
    shown, _ = furthest_moves(list(enumerate(rows)), _moved_by)
    return {
        (number, column): [topic, partition, offset, start, end]
        for number, (_, topic, partition, before, after, _, start, end) in shown
        for column, offset in (("before", before), ("after", after))
        if None not in (offset, start, end)
    }


def _moved_by(row: tuple[int, tuple[Any, ...]]) -> int:
    _, (_, _, _, before, after, _, start, _) = row
    return (after or 0) - (before if before is not None else start or 0)


def read_times(
    client: OffsetsClient, asked: Iterable[Sequence[Any]], made_ms: int, within: float
) -> dict[str, Any]:
    """
    Read the times at offsets of a receipt.

    :param asked: offsets as :func:`receipt_offsets` returns them.
    :param made_ms: when the receipt was made.
    :param within: seconds for reading.
    """
    wanted = [
        ReceiptOffset(TopicPartition(topic, partition), offset, LogRange(start, end))
        for topic, partition, offset, start, end in asked
    ]
    logs = client.log_ranges({place.topic_partition for place in wanted})
    there = {
        (place.topic_partition, place.offset)
        for place in wanted
        if place.offset in logs[place.topic_partition] and not _is_other(place, logs)
    }
    return resolve_times(wanted, logs, read_times_at(client, there, within), made_ms)


def resolve_times(
    wanted: Sequence[ReceiptOffset],
    logs: Mapping[TopicPartition, LogRange],
    times: Mapping[tuple[TopicPartition, int], int | None],
    made_ms: int,
) -> dict[str, Any]:
    """
    Return the result for each offset: a time, :data:`DELETED`, :data:`END`, or ``None`` if unknown.

    :return: ``times`` with these results, and ``others`` with the topics that now have another log.
    """
    found: list[str | None] = []
    others = set()
    for place in wanted:
        tp, offset = place.topic_partition, place.offset
        at = times.get((tp, offset))
        newer = at is not None and offset < place.log.end and at > made_ms + _SKEW_MS
        if newer or _is_other(place, logs):
            others.add(tp.topic)
            found.append(None)
        elif offset < logs[tp].start:
            found.append(DELETED)
        elif (tp, offset) in times:
            found.append(END if at is None else iso_time(at))
        else:
            found.append(None)
    return {"times": found, "others": sorted(others)}


def _is_other(place: ReceiptOffset, logs: Mapping[TopicPartition, LogRange]) -> bool:
    """Return whether a partition has another log than when the receipt was made: an end went back."""
    log = logs[place.topic_partition]
    return log.start < place.log.start or log.end < place.log.end
