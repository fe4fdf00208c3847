"""Sets of offsets of one partition, as sorted half-open ranges that neither touch nor overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition, by_topic
from airflow_kafka_offsets.model.text import plural

Ranges = tuple[OffsetRange, ...]
"""Sorted ranges that are not empty and do not touch."""

RangesByPartition = Mapping[TopicPartition, Ranges]
"""Partition -> its ranges, without partitions that have none."""


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges; empty and reversed ranges are ignored."""
    merged: list[OffsetRange] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1].end:
            merged[-1] = OffsetRange(merged[-1].start, max(merged[-1].end, end))
        else:
            merged.append(OffsetRange(start, end))
    return tuple(merged)


def merge_each(by_partition: Mapping[TopicPartition, Iterable[tuple[int, int]]]) -> RangesByPartition:
    """Return the union of each partition's ranges, without partitions that have none."""
    merged = {tp: merge(ranges) for tp, ranges in sorted(by_partition.items())}
    return {tp: ranges for tp, ranges in merged.items() if ranges}


def subtract(ranges: Ranges, removed: Ranges) -> Ranges:
    """Return the offsets of ``ranges`` that are not in ``removed``."""
    left: list[OffsetRange] = []
    at = 0
    for start, end in ranges:
        while at < len(removed) and removed[at].end <= start:
            at += 1
        following = at
        while following < len(removed) and removed[following].start < end:
            left.append(OffsetRange(start, removed[following].start))
            start = max(start, removed[following].end)
            following += 1
        left.append(OffsetRange(start, end))
    return merge(left)


def intersect(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the offsets that are in both sets."""
    return subtract(ranges, subtract(ranges, others))


def clip(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the offsets from ``start`` until before ``end``."""
    return merge((max(low, start), min(high, end)) for low, high in ranges)


def count_offsets(by_partition: RangesByPartition) -> int:
    """Return the number of offsets in the ranges of all partitions."""
    return sum(each.size for ranges in by_partition.values() for each in ranges)


def covering_ranges(ranges: Ranges, most: int, apart: int) -> Ranges:
    """Return at most ``most`` ranges that cover all offsets, split at the widest gaps from ``apart`` on."""
    gaps = sorted(
        ((after.start - before.end, at) for at, (before, after) in enumerate(pairwise(ranges), 1)),
        reverse=True,
    )
    cuts = sorted(at for gap, at in gaps[: most - 1] if gap >= apart)
    pieces = zip([0, *cuts], [*cuts, len(ranges)], strict=True)
    return tuple(OffsetRange(ranges[low].start, ranges[high - 1].end) for low, high in pieces if low < high)


def first_ranges(by_partition: RangesByPartition, limit: int) -> RangesByPartition:
    """Return the first ranges in order of partition and offset, at most ``limit``."""
    kept: dict[TopicPartition, Ranges] = {}
    for tp in sorted(by_partition):
        if limit > 0 and (ranges := by_partition[tp][:limit]):
            kept[tp] = ranges
            limit -= len(ranges)
    return kept


def ranges_text(by_partition: RangesByPartition, limit: int = 5) -> str:
    """Name the first ranges: ``orders-0: offset 17, orders-1: offsets 3 to 9 and 4 more ranges``."""
    listed = [
        f"{tp}: offset {start}" if end == start + 1 else f"{tp}: offsets {start} to {end - 1}"
        for tp, ranges in sorted(by_partition.items())
        for start, end in ranges[: limit + 1]
    ]
    total = sum(map(len, by_partition.values()))
    more = f" and {plural(total - limit, 'more range')}" if total > limit else ""
    return ", ".join(listed[:limit]) + more


def ranges_json(by_partition: RangesByPartition) -> dict[str, dict[str, list[list[int]]]]:
    """Return plain JSON: ``{topic: {partition: [[start, end], ...]}}``; the ends are exclusive."""
    return by_topic({tp: [list(each) for each in ranges] for tp, ranges in by_partition.items()})
