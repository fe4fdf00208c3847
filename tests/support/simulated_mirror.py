"""A mirror as MirrorMaker keeps one: what it copies, its syncs, and what its restarts copy again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_kafka_offsets.model.offset_syncs import OffsetSync
from airflow_kafka_offsets.model.offsets import LogRange
from airflow_kafka_offsets.model.translation import LastRead, RecordIdentity, Search, record_digest


@dataclass
class Record:
    """A record of the source."""

    offset: int
    timestamp: int
    value: bytes

    @cached_property
    def identity(self) -> RecordIdentity:
        return RecordIdentity(self.offset, self.timestamp, record_digest(None, self.value))


@dataclass
class Mirror:
    """
    A mirror of one partition.

    :param records: of the source; what is missing between their offsets was removed, or is a marker.
    :param lag: ``offset.lag.max``.
    :param start: the log start: retention has deleted the copies before it.
    """

    records: Sequence[Record]
    lag: int = 100
    start: int = 0
    log: list[Record] = field(default_factory=list)
    syncs: list[OffsetSync] = field(default_factory=list)
    kept: list[OffsetSync] = field(default_factory=list)
    """
    Those that must not be lost: the first after each start, and after what was skipped last before its end.
    """
    done: int = 0
    """The number of the record that it copies next."""

    def run(self, start: int, end: int) -> None:
        """Copy the records from number ``start`` to before ``end``, as one process of MirrorMaker does."""
        previous = last = None
        skipped: list[OffsetSync] = []
        for number, record in enumerate(self.records[start:end]):
            at = len(self.log)
            self.log.append(record)
            sync = OffsetSync(record.offset, at)
            jump = previous is not None and record.offset != previous + 1
            if last is None or at - last >= self.lag or jump:
                self.syncs.append(sync)
                last = at
                if jump:
                    skipped.append(sync)
                if not number:
                    self.kept.append(sync)
            previous = record.offset
        self.kept += skipped
        if end > start:  # nothing shows a start before the first copy
            self.done = end

    def again(self, position: int, at: int) -> int:
        """Return how many records before a position are read from a place."""
        return sum(record.offset < position for record in self.log[at:])

    @property
    def range(self) -> LogRange:
        return LogRange(self.start, len(self.log))

    def last_read(self, position: int) -> LastRead | None:
        read = [record for record in self.records if record.offset < position]
        if not read:
            return None
        alike = any(each.identity[1:] == read[-1].identity[1:] for each in read[-17:-1])
        return LastRead(position, read[-1].identity, distinct=not alike)

    def search(self, search: Search) -> Search:
        """Search a part of the mirror's log, as the reader does."""
        copies: list[int] = []
        seen: set[tuple[int, str]] = set()
        repeats = 0
        for at in range(search.start, search.end):
            found = self.log[at].identity[1:]
            repeats += found in seen
            seen.add(found)
            if search.read.identity[1:] == found:
                copies.append(at)
        return replace(search, copies=copies, records=search.end - search.start, repeats=repeats)
