"""Log ends and commits, read without the package."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Offsets = dict[str, dict[str, int]]

_AT_ONCE = 500


def log_ends(config: Mapping[str, str], topics: Sequence[str]) -> Offsets:
    """Return the log ends of all partitions of some topics."""
    with _consumer(config, "nobody") as consumer:
        known = consumer.list_topics(timeout=30).topics
        wanted = [
            TopicPartition(topic, number, -1)
            for topic in topics
            for number in sorted(known[topic].partitions)
        ]
        found: Offsets = defaultdict(dict)
        for first in range(0, len(wanted), _AT_ONCE):
            for at in consumer.offsets_for_times(wanted[first : first + _AT_ONCE], timeout=30):
                assert at.error is None, at
                found[at.topic][str(at.partition)] = at.offset
    return dict(found)


def committed(config: Mapping[str, str], group: str, partitions: Offsets) -> Offsets:
    """Return what a group has committed of some partitions, whatever their offsets here."""
    found: Offsets = defaultdict(dict)
    with _consumer(config, group) as consumer:
        for topic, offsets in partitions.items():
            wanted = [TopicPartition(topic, int(number)) for number in offsets]
            for at in consumer.committed(wanted, timeout=30):
                found[at.topic][str(at.partition)] = at.offset
    return dict(found)


def total(offsets: Offsets) -> int:
    """Add all offsets."""
    return sum(sum(each.values()) for each in offsets.values())


def differences(found: Offsets, wanted: Offsets) -> str:
    """Return how many partitions differ, and the first three."""
    flat = [
        {(t, p): at for t, each in offsets.items() for p, at in each.items()} for offsets in (found, wanted)
    ]
    differ = sorted(key for key in flat[0].keys() | flat[1].keys() if flat[0].get(key) != flat[1].get(key))
    shown = ", ".join(f"{t}-{p} {flat[0].get((t, p))}, expected {flat[1].get((t, p))}" for t, p in differ[:3])
    return f"{len(differ)} partitions: {shown}"


@contextmanager
def _consumer(config: Mapping[str, str], group: str) -> Iterator[Consumer]:
    consumer = Consumer({**config, "group.id": group, "log_level": 0})
    try:
        yield consumer
    finally:
        consumer.close()
