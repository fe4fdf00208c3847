"""
Offset syncs of MirrorMaker 2: which offset of the mirror holds a record of the source.

MirrorMaker writes a sync for the first record after its start, after each offset that it has skipped, and
after ``offset.lag.max`` records (Apache Kafka, ``PartitionState.update``). The topic lacks some syncs: a
newer sync replaces one that waits to be sent, and the topic is compacted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, is_topic_name

_NUMBER = struct.Struct(">i")
_PAIR = struct.Struct(">qq")
_LENGTH = struct.Struct(">h")


class OffsetSync(NamedTuple):
    """A record's offset on the source, and that of its copy on the mirror."""

    upstream: int
    downstream: int


def parse_sync(key: bytes | None, value: bytes | None) -> tuple[TopicPartition, OffsetSync] | None:
    """
    Read a record of the syncs topic: STRING topic, INT32 partition -> INT64 upstream, INT64 downstream.

    :return: ``None`` for a record of another form.
    """
    if key is None or value is None or len(value) != _PAIR.size or len(key) < _LENGTH.size + _NUMBER.size:
        return None
    (length,) = _LENGTH.unpack_from(key)
    if length < 0 or len(key) != _LENGTH.size + length + _NUMBER.size:
        return None
    topic = key[_LENGTH.size : _LENGTH.size + length].decode("ascii", "replace")
    (number,) = _NUMBER.unpack_from(key, _LENGTH.size + length)
    sync = OffsetSync(*_PAIR.unpack(value))
    if not is_topic_name(topic) or number < 0 or min(sync) < 0:
        return None
    return TopicPartition(topic, number), sync


def serialize_sync(partition: TopicPartition, sync: OffsetSync) -> tuple[bytes, bytes]:
    """Return key and value of a record that :func:`parse_sync` reads."""
    topic = partition.topic.encode("ascii")
    key = _LENGTH.pack(len(topic)) + topic + _NUMBER.pack(partition.partition)
    return key, _PAIR.pack(*sync)


def in_this_log(syncs: Iterable[OffsetSync]) -> list[OffsetSync]:
    """
    Return the syncs that belong to the mirror's current log.

    If the offset on the mirror goes back, the topic there was created again, and earlier syncs are invalid.

    :param syncs: the syncs in the order of the syncs topic.
    """
    kept: list[OffsetSync] = []
    for sync in syncs:
        if kept and sync.downstream < kept[-1].downstream:
            kept.clear()
        kept.append(sync)
    return kept


@dataclass(frozen=True)
class Bracket:
    """
    The range on the mirror that contains the first record at or after a position of the source.

    :param position: the next offset to read on the source.
    :param before: the last sync at or before the position that can be used; ``None`` without one.
    :param after: the first sync at or after it; ``None`` without one.
    :param log: the mirror's log.
    :param repeated: upper bound of the records before the position that a restarted mirror has copied again
        after the place.
    """

    position: int
    before: OffsetSync | None
    after: OffsetSync | None
    log: LogRange
    repeated: int = 0

    @property
    def low(self) -> int:
        """The lowest possible offset of the place; reading from it loses no record."""
        if self.before is None:
            return self.log.start
        return self.before.downstream + (self.before.upstream < self.position)

    @property
    def high(self) -> int:
        """The highest possible offset of the place."""
        last = self.log.end if self.after is None else self.after.downstream
        if self.before is not None:
            # Each copied record has an offset on the source, so the mirror cannot have more of them.
            last = min(last, self.before.downstream + self.position - self.before.upstream)
        return max(last, self.low)

    @property
    def parallel(self) -> bool:
        """Whether the syncs are equally far apart on both clusters."""
        if self.before is None or self.after is None:
            return False
        upstream, downstream = (end - start for start, end in zip(self.before, self.after, strict=True))
        return upstream == downstream

    @property
    def search(self) -> tuple[int, int]:
        """The half-open range of offsets that may contain the copy of the last record."""
        low = self.low if self.before is None else self.before.downstream
        end = self.log.end if self.after is None else self.after.downstream
        return max(low, self.log.start), max(low, min(end, self.log.end), self.log.start)


def bracket(syncs: Iterable[OffsetSync], position: int, log: LogRange) -> Bracket:
    """
    Return where a position of the source is on the mirror.

    A restarted mirror copies some records again. Its syncs show this: two of them are further apart on the
    mirror than on the source. The first copies are used, because reading from them loses no record. Once the
    mirror has copied more records since the restart than it had copied of that range before, the copies
    before the restart are ignored.

    :param syncs: the partition's syncs, in any order.
    :param position: the next offset to read on the source.
    :param log: the mirror's log.
    """
    ordered = sorted({sync for sync in syncs if sync.downstream < log.end}, key=lambda sync: sync.downstream)
    rewinds = _rewinds(ordered)
    start, end = _usable(ordered, rewinds, position, log)
    before = after = None
    for sync in ordered[start:end]:
        if sync.upstream >= position:
            after = sync
        if sync.upstream <= position:
            before = sync
        if after is not None:
            break
    place = log.start if before is None else before.downstream
    return Bracket(position, before, after, log, _repeated(ordered, rewinds, position, place, log))


def _rewinds(ordered: Sequence[OffsetSync]) -> list[int]:
    """Return the indexes of the first syncs after each restart that copied records again."""
    return [
        number
        for number in range(1, len(ordered))
        if ordered[number].downstream - ordered[number - 1].downstream
        > ordered[number].upstream - ordered[number - 1].upstream
    ]


def _usable(
    ordered: Sequence[OffsetSync], rewinds: Sequence[int], position: int, log: LogRange
) -> tuple[int, int]:
    """Return the range of usable syncs for a position, such that no copy after the position is skipped."""
    start, open_since = 0, None
    for number, following in zip(rewinds, [*rewinds[1:], None], strict=False):
        restart = ordered[number]
        if restart.upstream > position:
            continue  # only records after the position were copied again
        first = number if open_since is None else open_since
        lowest = min(ordered[each].upstream for each in rewinds if first <= each <= number)
        earlier = [sync for sync in ordered[start:first] if sync.upstream <= lowest]
        copied = restart.downstream - (earlier[-1].downstream if earlier else 0)
        until = log.end if following is None else ordered[following].downstream
        if until - restart.downstream > copied:
            start, open_since = number, None
        else:
            open_since = first
    return start, len(ordered) if open_since is None else open_since


def _repeated(
    ordered: Sequence[OffsetSync], rewinds: Sequence[int], position: int, place: int, log: LogRange
) -> int:
    """Return how many records before a position the mirror may have copied again after an offset."""
    found = 0
    for number in rewinds:
        restart, last = ordered[number], ordered[number - 1]
        if restart.upstream >= position or restart.downstream <= place:
            continue
        passed = (sync.downstream for sync in ordered[number:] if sync.upstream >= position)
        found += next(passed, log.end) - max(last.downstream + 1, place)
    return found
