"""What a table holds of an offset window: rows, offsets without a row, with several rows, and other rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.fingerprint import Fingerprint
from airflow_kafka_offsets.model.offset_ranges import Ranges, RangesByPartition, merge
from airflow_kafka_offsets.model.offsets import OffsetRange, OffsetRanges, TopicPartition
from airflow_kafka_offsets.model.text import shorten

MOST_DIFFERENCES = 500_000
"""Places of a table at which offsets are missing or double, that are read: each takes about 200 bytes."""


class ForeignRows(NamedTuple):
    """Rows of the audited selection that are outside the window, by topic and partition."""

    topic: str | None
    partition: int | None
    first: int | None
    """The lowest offset; ``None`` if no row has one."""
    last: int | None
    rows: int


@dataclass(frozen=True)
class PartitionRows:
    """
    What a table holds of one partition's range.

    :param rows: rows with an offset in the range.
    :param missing: offsets of the range without a row.
    :param doubled: offsets of the range with several rows.
    :param unlisted: offsets after the last difference that was read: nothing is known about them.
    """

    rows: int
    missing: Ranges = ()
    doubled: Ranges = ()
    unlisted: Ranges = ()


@dataclass(frozen=True)
class TableRows:
    """
    What a table holds of a window.

    :param partitions: each partition of the window.
    :param foreign: rows of the selection outside the window; empty where other windows' rows are expected.
    """

    partitions: Mapping[TopicPartition, PartitionRows]
    foreign: Sequence[ForeignRows] = ()

    @property
    def rows(self) -> int:
        """Rows with an offset in the window."""
        return sum(each.rows for each in self.partitions.values())

    @property
    def missing(self) -> RangesByPartition:
        """The offsets of the window without a row."""
        return {tp: each.missing for tp, each in self.partitions.items() if each.missing}

    @property
    def doubled(self) -> RangesByPartition:
        """The offsets of the window with several rows."""
        return {tp: each.doubled for tp, each in self.partitions.items() if each.doubled}

    @property
    def unlisted(self) -> RangesByPartition:
        """The offsets that were not compared, since the table differs at too many places."""
        return {tp: each.unlisted for tp, each in self.partitions.items() if each.unlisted}


class Sums(NamedTuple):
    """What one aggregating statement says about the rows of one partition's range."""

    rows: int
    total: int
    """The sum of :meth:`~airflow_kafka_offsets.model.fingerprint.Fingerprint.of`."""
    first: int
    last: int


class Difference(NamedTuple):
    """A row whose offset does not follow that of the row before by one, in order of offsets."""

    partition: TopicPartition
    before: int
    offset: int


@dataclass(frozen=True)
class RowCheck:
    """
    Compares the sums of a table with a window, and reads the partitions that differ.

    :param ranges: the window's ranges.
    :param sums: those of the partitions that have a row in their range.
    """

    ranges: OffsetRanges
    fingerprint: Fingerprint
    sums: Mapping[TopicPartition, Sums] = field(default_factory=dict)

    @property
    def differing(self) -> list[TopicPartition]:
        """The partitions that have rows, and not exactly one for each offset."""
        return [
            tp
            for tp, sums in sorted(self.sums.items())
            if not self.fingerprint.fits(self.ranges[tp], sums.rows, sums.total)
        ]

    def rows(
        self, differences: Iterable[Difference], most: int = MOST_DIFFERENCES
    ) -> dict[TopicPartition, PartitionRows]:
        """
        Return what the table holds of each partition.

        :param differences: of all differing partitions, in order of partition and offset; of more than
            ``most`` the rest is unlisted.
        :raises AuditError: if they contradict the sums: rows were added or removed between the two reads.
        """
        gaps: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in self.differing}
        doubled: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in gaps}
        surplus = dict.fromkeys(gaps, 0)
        listed: Difference | None = None
        truncated = False
        for number, each in enumerate(differences):
            if truncated := number == most:
                break
            tp, before, offset = listed = each
            if offset == before:
                doubled[tp].append((offset, offset + 1))
                surplus[tp] += 1
            else:
                gaps[tp].append((before + 1, offset))
        known: dict[TopicPartition, PartitionRows] = {}
        for tp, offsets in sorted(self.ranges.items()):
            sums = self.sums.get(tp)
            if sums is None:
                known[tp] = PartitionRows(0, merge([offsets]))
            elif tp not in gaps:
                known[tp] = PartitionRows(sums.rows)
            else:
                end = offsets.end
                if truncated and listed is not None and tp >= listed.partition:
                    end = listed.offset if tp == listed.partition else offsets.start
                edges = [(offsets.start, min(sums.first, end)), (max(sums.last + 1, offsets.start), end)]
                missing = merge([*gaps[tp], *edges])
                if end == offsets.end:
                    self._reconcile(tp, missing, surplus[tp])
                known[tp] = PartitionRows(sums.rows, missing, merge(doubled[tp]), merge([(end, offsets.end)]))
        return known

    def _reconcile(self, tp: TopicPartition, missing: Ranges, surplus: int) -> None:
        offsets, sums = self.ranges[tp], self.sums[tp]
        without = sum(each.size for each in missing)
        if sums.rows - surplus + without != offsets.size or not (without or surplus):
            raise AuditError(
                f"{tp}: the table changed while it was read: first {sums.rows} rows were found for the "
                f"{offsets.size} offsets of the window, then {offsets.size - without + surplus}: audit it "
                "after the tasks that write to it have ended",
                retriable=True,
            )


def whole_number(value: object, column: str) -> int:
    """
    Return a partition or an offset as a table holds it.

    :raises UsageError: if it is no whole number, such as digits in a column of text.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and type(value).__name__ == "Decimal" and value == int(value):  # type: ignore[call-overload]
        whole = True
    if not whole:
        raise UsageError(
            f"column {column!r} holds {shorten(repr(value))} ({type(value).__name__}); expected whole "
            "numbers: correct the name of the column, or audit a view in which it is a BIGINT"
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def range_of(ranges: Mapping[TopicPartition, OffsetRange]) -> OffsetRange:
    """Return the lowest start and the highest end of all partitions."""
    return OffsetRange(min(each.start for each in ranges.values()), max(each.end for each in ranges.values()))
