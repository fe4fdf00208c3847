"""The rule by which positions have passed offsets: of sensors, and of what counts complete intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kafka_offsets.model.lag import clamp_to_log_start, readable_target, remaining_offsets
from airflow_kafka_offsets.model.offsets import Logs, Offsets, Positions, TopicPartition


def furthest_behind(
    positions: Iterable[Positions], partitions: Iterable[TopicPartition] | None = None
) -> Positions:
    """
    Return, of several positions of one partition, the one that is furthest behind.

    :param partitions: those of the result, ``None`` for one without a position; by default all.
    """
    lowest: Positions = {}
    for each in positions:
        for tp, position in each.items():
            known = lowest.get(tp, position)
            lowest[tp] = None if known is None or position is None else min(known, position)
    return lowest if partitions is None else {tp: lowest.get(tp) for tp in partitions}


def short_of(
    positions: Positions, target: Mapping[TopicPartition, int], logs: Logs, tolerance: int = 0
) -> Offsets:
    """
    Return how many offsets positions are short of a target, partition by partition; empty if it is reached.

    A position below the log start is at the log start, since the records before that are gone. A partition
    without a position that holds no record before the target is not short of it.
    """
    readable = readable_target(positions, dict(target), logs)
    return remaining_offsets(clamp_to_log_start(positions, logs), readable, tolerance)
