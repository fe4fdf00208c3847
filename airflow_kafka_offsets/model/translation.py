"""
Translation of a position on the source to an offset on the mirror.

A position is the next offset to read. Its *mirrored offset* is the offset on the mirror of the first record
that was copied from the position or after it. MirrorMaker's syncs
(:mod:`airflow_kafka_offsets.model.offset_syncs`) give a range for it. The copy of the last record that the
query read, if it is in this range, gives the mirrored offset itself.

A translation is never after that offset, so that no record is lost. ``again`` is how many records are read
again at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from airflow_kafka_offsets.model.offset_syncs import Bracket, OffsetSync, bracket, next_upstream
from airflow_kafka_offsets.model.offsets import LogRange

DIGEST_LENGTH = 16


class RecordIdentity(NamedTuple):
    """The properties that identify a record on the mirror."""

    offset: int
    """Its offset on the source."""
    timestamp: int
    """In milliseconds since 1970; negative if the record has no timestamp."""
    digest: str
    """Of its key and value, see :func:`record_digest`."""


class LastRead(NamedTuple):
    """The last record before a position of the source."""

    position: int
    identity: RecordIdentity
    others: int = 0
    """
    Most records between the last record and the position that a mirror may have copied too: records of
    aborted transactions, or records that compaction has removed since.
    """
    distinct: bool = True
    """Whether no record nearby before it has the same timestamp, key and value."""

    @property
    def next_offset(self) -> int:
        """The offset after the record, or the position if a mirror may have copied records in between."""
        return self.position if self.others else self.identity.offset + 1


def record_digest(key: bytes | None, value: bytes | None) -> str:
    """Return a short hash of a key and a value."""
    parts = [b"-" if part is None else b"%d:" % len(part) + part for part in (key, value)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class Search:
    """
    A search for the copy of a record in a part of the mirror's log, and its result.

    :param end: the offset after the last one to search; in a result, after the last one that was searched.
    :param copies: offsets of records with the timestamp, key and value of the record.
    :param alike: offsets of records with its key and value but another timestamp.
    :param records: number of records that were searched; a compacted or transactional log has fewer records
        than offsets.
    :param repeats: number of these records that are equal to an earlier one.
    :param by_time: whether the search began at the first record that is as new as the wanted one.
    """

    read: LastRead
    start: int
    end: int
    copies: Sequence[int] = ()
    alike: Sequence[int] = ()
    records: int = 0
    repeats: int = 0
    by_time: bool = False

    @property
    def found(self) -> Sequence[int]:
        """The offsets that may be the copy."""
        return self.copies or self.alike

    @property
    def contiguous(self) -> bool:
        """Whether each offset has a record."""
        return self.records == self.end - self.start

    def is_whole(self, low: int, high: int) -> bool:
        """Whether each offset from ``low`` to before ``high`` has a record, and no two records are equal."""
        return self.contiguous and not self.repeats and self.start <= low and high <= self.end

    def covers(self, low: int, high: int) -> bool:
        """Whether the search found every record from ``low`` to before ``high`` that may be the copy."""
        return (self.start <= low or self.by_time) and high <= self.end

    def found_between(self, low: int, high: int) -> list[int]:
        """Return the offsets from ``low`` to before ``high`` that may be the copy."""
        return [offset for offset in self.found if low <= offset < high]


@dataclass(frozen=True)
class Translation:
    """
    A position on the mirror.

    :param offset: offset where the query continues; ``None`` if unknown.
    :param again: most records that may be read again.
    :param by: the evidence: MirrorMaker's syncs, the last record that the query read, or that the mirror's
        log never had a record.
    :param why: reason why the position is unknown, or a remark about it.
    """

    offset: int | None
    again: int = 0
    by: Literal["sync", "record", "empty"] = "sync"
    why: str = ""

    @property
    def exact(self) -> bool:
        """Whether the offset is known, and no record is read again."""
        return self.offset is not None and self.again == 0

    def __str__(self) -> str:
        if self.offset is None:
            return "unknown"
        return f"exact ({self.by})" if self.exact else f"safe: at most {self.again} again"


CLOSE = 1_000
"""
Up to this many offsets between two syncs, an equal number of offsets on both clusters is enough evidence that
each record has its copy. ``offset.lag.max`` is 100 by default.
"""
SEARCHES = 3
"""Most records to search for, one after another, until the translation is exact."""


@dataclass(frozen=True)
class Evidence:
    """
    What is known about the mirrored offset of a position.

    :param position: the next offset to read on the source.
    :param log: the mirror's log.
    :param syncs: syncs of the partition, in any order.
    :param read: last records before this and other positions, in any order.
    :param source: the source's log; ``None`` if the source is gone, so that the mirror copies nothing more.
    :param no_record: whether the source is known to have no record before the position.
    :param searches: the results of :meth:`next_search`.
    """

    position: int
    log: LogRange
    syncs: Sequence[OffsetSync] = ()
    read: Sequence[LastRead] = ()
    source: LogRange | None = None
    no_record: bool = False
    searches: Sequence[Search] = ()

    def next_search(self) -> Search | None:
        """
        Return the next search that may make the translation exact; ``None`` if no search is left.

        The first search is for the last record before the position; the next ones are for earlier records.
        """
        # Of several records before one position, the first in the list.
        reads = {last.position: last for last in reversed(self.read) if last.position <= self.position}
        done = len(self.searches)
        if done == min(len(reads), SEARCHES):
            return None
        if done:
            found = self.translate()
            if found.exact or found.offset is None:
                return None
        last = reads[sorted(reads, reverse=True)[done]]
        return Search(last, *bracket(self.syncs, last.next_offset, self.log).search)

    def with_search(self, search: Search) -> Evidence:
        """Return the evidence with the result of one more search."""
        return replace(self, searches=[*self.searches, search])

    def translate(self) -> Translation:
        """Translate the position; records before it that the mirror has not copied yet are read again."""
        if self.position == 0:
            return Translation(0)
        pairs = self._pairs()
        every = [*self.syncs, *pairs]
        newest = next((each for each in self.searches if each.read.position == self.position), None)
        others, at = (0, self.position) if newest is None else (newest.read.others, newest.read.next_offset)
        uncopied = 0
        if self.source is not None:
            copied = next_upstream(every, self.log.end) or 0
            uncopied = max(0, at - max(self.source.start, copied))
        if newest and (by_record := self._by_record(newest, uncopied, same_records=bool(pairs))):
            return by_record
        found = bracket(every, at, self.log)
        # If the search found several equal records, the first one is safe: it is not after the right one.
        if newest and (copies := newest.found_between(*found.search)):
            return _after_the_first(found, copies, others + uncopied)
        if any(sync.downstream >= self.log.end for sync in self.syncs):
            return Translation(
                None,
                why="the syncs show copies after the end of the mirror's log: the topic has another name "
                "there, was created again, or has lost records",
            )
        if self.log.end == 0 and not self.no_record:
            why = "the mirror has no record of it: nothing was copied, or the topic has another name there"
            return Translation(None, by="empty", why=why)
        return _by_syncs(found, others + uncopied, newest)

    def _pairs(self) -> list[OffsetSync]:
        """Return syncs made from the last records before earlier positions whose copies were found."""
        found = {
            each.read.identity.offset: self._by_record(each)
            for each in self.searches
            if each.read.position < self.position
        }
        return [
            OffsetSync(upstream, copy.offset - 1)
            for upstream, copy in found.items()
            if copy is not None and copy.offset is not None
        ]

    def _by_record(
        self, search: Search, uncopied: int = 0, *, same_records: bool = False
    ) -> Translation | None:
        """Return the offset after the copy of a record; ``None`` if the search does not give it."""
        last = search.read
        found = bracket(self.syncs, last.next_offset, self.log)
        if not search.covers(*found.search):
            return None
        copies = search.found_between(*found.search)
        if len(copies) == 1:
            at = copies[0] + 1
            passed = found.after is not None or (last.distinct and not search.repeats)
            if passed and found.low <= at <= found.high:
                # The mirror has passed the record, unless it is copying again.
                again = found.repeated + uncopied if found.repeated else 0
                return Translation(at, again + last.others, "record")
        # Whether the copy may be before the offsets that were searched.
        earlier = search.start > 0 if found.before is None else found.before.upstream > last.identity.offset
        if copies or not search.contiguous or search.by_time or earlier:
            return None
        next_copied = next_upstream(self.syncs, self.log.end) or 0
        if found.after is not None or next_copied > last.identity.offset:
            lowest = _by_syncs(found, 0, search).offset
            if lowest is not None and 0 < found.log.start >= lowest:
                return None  # retention may have deleted the copy
            return Translation(
                None,
                why="the mirror does not have the last record that the query read at the offset that the "
                "syncs give: the topic has another name there, or the mirror changes the records",
            )
        if same_records and search.end == self.log.end and not last.others:
            return Translation(
                search.end, found.repeated + uncopied, "record", "the mirror ends before the position"
            )
        return None


def _after_the_first(found: Bracket, copies: Sequence[int], others: int) -> Translation:
    """Return the offset after the first equal record; one of these is the last record that the query read."""
    by_syncs = _by_syncs(found, others, None)
    if (
        by_syncs.again == others + found.repeated
        and by_syncs.offset is not None
        and by_syncs.offset - 1 in copies
    ):
        return by_syncs
    low = max(found.low, min(copies[0] + 1, found.high))
    return Translation(low, max(0, found.high - low) + found.repeated + others, "record")


def _by_syncs(found: Bracket, others: int, search: Search | None) -> Translation:
    """Return the translation that the syncs give without a copy."""
    before, after = found.before, found.after
    if before is None and after is None:
        if found.log.end == 0:
            return Translation(0, others, "empty", "no record was copied")
        last = "no copy of" if search else "could not read"
        return Translation(None, why=f"found no offset sync, and {last} the last record that the query read")
    if before is not None and after is not None:
        start, end = before.downstream, after.downstream
        seen = end - start <= CLOSE or (search is not None and search.is_whole(start, end))
        if seen and end - start == after.upstream - before.upstream:
            return Translation(found.high, found.repeated + others)
    unread, why = found.high - found.low, ""
    if before is not None:
        unread = min(unread, max(0, found.position - before.upstream - 1))
    elif after is not None and after.downstream == 0:
        why = "the mirror begins with a later record of the source: the query does not read those between"
    return Translation(found.low, min(unread, found.position) + found.repeated + others, why=why)
