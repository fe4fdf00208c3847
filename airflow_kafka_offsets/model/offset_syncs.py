"""
Offset syncs of MirrorMaker 2: pairs of an offset on the source and the offset of its copy on the mirror.

MirrorMaker writes a sync for the first record after its start, after each offset that it has skipped, and
after ``offset.lag.max`` records (Apache Kafka, ``PartitionState.update``). The topic does not hold all of
these syncs: a newer sync replaces one that waits to be sent, and the topic is compacted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, is_topic_name


class OffsetSync(NamedTuple):
    """A record's offset on the source, and that of its copy on the mirror."""

    upstream: int
    downstream: int


class Syncs(NamedTuple):
    """The syncs that were read, and the offset to continue from."""

    by_partition: Mapping[TopicPartition, list[OffsetSync]]
    """Partition of the source -> its syncs, in the order of the topic."""
    topic: str
    next: int
    whole: bool = True
    """Whether all syncs of the topic were read."""


_DOWNSTREAM = attrgetter("downstream")


def parse_sync(key: bytes | None, value: bytes | None) -> tuple[TopicPartition, OffsetSync] | None:
    """
    Read a record of the syncs topic: STRING topic, INT32 partition -> INT64 upstream, INT64 downstream.

    :return: ``None`` if the record is not a sync.
    """
    # A STRING is its length in two bytes and its text: with an empty topic the key has six bytes.
    if key is None or value is None or len(key) < 6 or len(value) != 16:
        return None
    length, text, number = struct.unpack(f">h{len(key) - 6}si", key)
    topic, sync = text.decode("ascii", "replace"), OffsetSync(*struct.unpack(">qq", value))
    if length != len(text) or not is_topic_name(topic) or number < 0 or min(sync) < 0:
        return None
    return TopicPartition(topic, number), sync


def syncs_of_this_log(syncs: Iterable[OffsetSync]) -> list[OffsetSync]:
    """
    Return those of one partition's syncs, in the order of the topic, that belong to the mirror's present log.

    If the offset on the mirror decreases, or is that of another record, the topic was created again on the
    mirror, and the syncs before that belong to the deleted topic.
    """
    kept: list[OffsetSync] = []
    for sync in syncs:
        if kept and sync.downstream <= kept[-1].downstream and sync != kept[-1]:
            kept.clear()
        kept.append(sync)
    return kept


@dataclass(frozen=True)
class Bracket:
    """
    The range of offsets on the mirror for a position of the source.

    Its *mirrored offset* is the offset on the mirror of the first record at or after the position.

    :param position: the next offset to read on the source.
    :param before: the last usable sync at or before the position, if any.
    :param after: the first usable sync at or after the position, if any.
    :param log: the mirror's log.
    :param repeated: most records before the position that a restarted mirror has copied again after the
        mirrored offset.
    """

    position: int
    before: OffsetSync | None
    after: OffsetSync | None
    log: LogRange
    repeated: int = 0

    @property
    def low(self) -> int:
        """
        The lowest possible mirrored offset. Reading from here loses no record.

        It is below the log start if the mirror may have deleted the record there.
        """
        if self.before is not None:
            return self.before.downstream + (self.before.upstream < self.position)
        if self.after is None:
            return self.log.start
        # Each record between the mirrored offset and the sync has its own offset on the source.
        lowest = self.after.downstream - (self.after.upstream - self.position)
        return min(self.log.start, max(0, lowest))

    @property
    def high(self) -> int:
        """The highest possible mirrored offset."""
        last = self.log.end if self.after is None else self.after.downstream
        if self.before is not None:
            # Each record that was copied has one offset on the source, so it cannot be further on.
            last = min(last, self.before.downstream + self.position - self.before.upstream)
        return max(last, self.low)

    @property
    def search(self) -> tuple[int, int]:
        """The offsets that may hold the copy of the last record before the position; the end is exclusive."""
        low = self.low if self.before is None else self.before.downstream
        end = self.log.end if self.after is None else self.after.downstream
        return max(low, self.log.start), max(low, min(end, self.log.end), self.log.start)


def bracket(syncs: Iterable[OffsetSync], position: int, log: LogRange) -> Bracket:
    """
    Return the range of offsets on the mirror for a position of the source.

    A restarted mirror copies some records again. Its syncs show this: between two of them the mirror has more
    records than the source has offsets. Reading from the first copies loses no record. If the mirror has
    since copied the whole range again, the copies before the restart are not used. That is certain once the
    mirror has copied more records after the restart than it had copied of this range before.

    :param syncs: syncs of the partition, in any order.
    """
    ordered = sorted({sync for sync in syncs if sync.downstream < log.end}, key=_DOWNSTREAM)
    restarts = find_restarts(ordered)
    start, end = _usable(ordered, restarts, position, log)
    before = after = None
    for sync in ordered[start:end]:
        if sync.upstream >= position:
            after = sync
        if sync.upstream <= position:
            before = sync
        if after is not None:
            break
    reached = log.start if before is None else before.downstream
    return Bracket(position, before, after, log, _repeated(ordered, restarts, position, reached, log))


def next_upstream(syncs: Iterable[OffsetSync], end: int) -> int | None:
    """
    Return the lowest offset on the source that the mirror may copy next; ``None`` without a sync.

    :param end: the end of the mirror's log.
    """
    newest = max((sync for sync in syncs if sync.downstream < end), key=_DOWNSTREAM, default=None)
    # Each record after the sync has its own offset on the source.
    return None if newest is None else newest.upstream + end - newest.downstream


def find_restarts(ordered: Sequence[OffsetSync]) -> list[int]:
    """Return the indexes of the first syncs after a restart that made the mirror copy records again."""
    return [
        number
        for number, (before, after) in enumerate(pairwise(ordered), 1)
        if after.downstream - before.downstream > after.upstream - before.upstream
    ]


def _usable(
    ordered: Sequence[OffsetSync], restarts: Sequence[int], position: int, log: LogRange
) -> tuple[int, int]:
    """Return the range of syncs that a position may use so that the query skips no record."""
    start, open_since = 0, None
    for number, following in zip(restarts, [*restarts[1:], None], strict=False):
        restart = ordered[number]
        if restart.upstream > position:
            continue  # only records after the position are copied again
        first = number if open_since is None else open_since
        lowest = min(ordered[each].upstream for each in restarts if first <= each <= number)
        earlier = [sync for sync in ordered[start:first] if sync.upstream <= lowest]
        copied = restart.downstream - (earlier[-1].downstream if earlier else 0)
        until = log.end if following is None else ordered[following].downstream
        if until - restart.downstream > copied:
            start, open_since = number, None
        else:
            open_since = first
    return start, len(ordered) if open_since is None else open_since


def _repeated(
    ordered: Sequence[OffsetSync], restarts: Sequence[int], position: int, reached: int, log: LogRange
) -> int:
    """Return the most records before a position that the mirror may have copied again after an offset."""
    found = 0
    for number in restarts:
        restart, last = ordered[number], ordered[number - 1]
        if restart.upstream >= position or restart.downstream <= reached:
            continue
        passed = (sync.downstream for sync in ordered[number:] if sync.upstream >= position)
        found += next(passed, log.end) - max(last.downstream + 1, reached)
    return found
