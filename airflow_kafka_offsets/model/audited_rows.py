"""The rows that a table has for an offset window, and its missing, doubled and foreign offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.fingerprint import Fingerprint
from airflow_kafka_offsets.model.offset_ranges import Ranges, RangesByPartition, merge
from airflow_kafka_offsets.model.offsets import OffsetRange, OffsetRanges, TopicPartition
from airflow_kafka_offsets.model.text import shorten

MOST_DIFFERENCES = 500_000
"""Most differences (gaps or doubled offsets) that are read from a table; each takes about 200 bytes."""


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
    The rows that a table has for the offsets of one partition.

    :param rows: rows with an offset in the range.
    :param missing: offsets of the range without a row.
    :param doubled: offsets of the range with several rows.
    :param unlisted: offsets after the last difference that was read; they were not compared.
    """

    rows: int
    missing: Ranges = ()
    doubled: Ranges = ()
    unlisted: Ranges = ()


@dataclass(frozen=True)
class TableRows:
    """
    The rows that a table has for a window.

    :param partitions: each partition of the window.
    :param foreign: rows of the selection outside the window; empty if rows of other windows are expected.
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
        """The offsets that were not compared, because the table has too many differences."""
        return {tp: each.unlisted for tp, each in self.partitions.items() if each.unlisted}


class Sums(NamedTuple):
    """Aggregates of the rows of one partition's range, from one SQL statement."""

    rows: int
    total: int
    """The sum of :meth:`~airflow_kafka_offsets.model.fingerprint.Fingerprint.value`."""
    first: int
    last: int


class Difference(NamedTuple):
    """A row whose offset is not the previous row's offset plus one, with rows in order of offsets."""

    partition: TopicPartition
    before: int
    offset: int


@dataclass(frozen=True)
class RowCheck:
    """
    Compares the sums of a table with a window, and reads the partitions that differ.

    :param ranges: the window's ranges.
    :param sums: the aggregates of each partition that has a row in its range.
    """

    ranges: OffsetRanges
    fingerprint: Fingerprint
    sums: Mapping[TopicPartition, Sums] = field(default_factory=dict)

    @property
    def differing(self) -> list[TopicPartition]:
        """The partitions that have rows, but not exactly one row for each offset."""
        return [
            tp
            for tp, sums in sorted(self.sums.items())
            if not self.fingerprint.matches(self.ranges[tp], sums.rows, sums.total)
        ]

    def rows(
        self, differences: Iterable[Difference], most: int = MOST_DIFFERENCES
    ) -> dict[TopicPartition, PartitionRows]:
        """
        Return the rows that the table has for each partition.

        :param differences: those of all differing partitions, in order of partition and offset. Only the
            first ``most`` are read; offsets after them are unlisted.
        :raises AuditError: if the differences contradict the sums, because rows were added or removed between
            the two reads.
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
    """Return a number that was read from a table; raise a UsageError if it is not a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Decimal) and value.is_finite() and value == int(value):
        return int(value)
    raise UsageError(
        f"column {column!r} holds {shorten(repr(value))} ({type(value).__name__}); expected whole "
        "numbers: correct the name of the column, or audit a view in which it is a BIGINT"
    )


def range_of(ranges: Mapping[TopicPartition, OffsetRange]) -> OffsetRange:
    """Return the lowest start and the highest end of all partitions."""
    return OffsetRange(min(each.start for each in ranges.values()), max(each.end for each in ranges.values()))
