"""The rule for "positions have reached offsets", for sensors and for the counter of complete intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kafka_offsets.model.offsets import Logs, Offsets, Positions, TopicPartition


def furthest_behind(
    positions: Iterable[Positions], partitions: Iterable[TopicPartition] | None = None
) -> Positions:
    """
    Return each partition's lowest position among several sets of positions.

    :param partitions: the partitions of the result, with ``None`` for one without a position; by default all.
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
    Return the remaining offsets of each partition up to a target; empty if the target is reached.

    A position below the log start counts as the log start, because retention has deleted the records between
    them. A partition without a position has reached the target if its log has no record before the target;
    otherwise all offsets up to the target remain, whatever the tolerance.
    """
    remaining: Offsets = {}
    for tp, end in sorted(target.items()):
        position, start = positions.get(tp), logs[tp].start
        if position is None:
            if start < end:
                remaining[tp] = end
        elif (rest := end - max(position, start)) > tolerance:
            remaining[tp] = rest
    return remaining
