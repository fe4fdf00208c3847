"""The table that an audit reads, its rows for a window, and its missing, doubled and foreign offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.fingerprint import Fingerprint
from airflow_kafka_offsets.model.formats import load_json_parameter
from airflow_kafka_offsets.model.offset_ranges import RangesByPartition, merge, merge_each
from airflow_kafka_offsets.model.offsets import OffsetRange, OffsetRanges, TopicPartition
from airflow_kafka_offsets.model.parameters import is_blank
from airflow_kafka_offsets.model.text import quote
from airflow_kafka_offsets.model.wording import parameter_error, unexpected

MOST_DIFFERENCES = 500_000
"""Most differences (gaps or doubled offsets) that are read from a table; each takes about 200 bytes."""

_FORM = '{"column": value} or {"column": [values]}, such as {"batch": 7}'
_VALUES = (str, int, float, Decimal, date, datetime)


@dataclass(frozen=True)
class AuditedTable:
    """
    The table of an audit, and its columns for a record's topic, partition and offset.

    :param table: name of the table, or ``schema.table``.
    :param topic_column: ``None`` if the table has the records of one topic and no column for it.
    :param where: column -> value, or list of values, of the audited rows. These rows must be the output of
        the window only; rows outside the window then count as foreign.
    """

    table: str
    topic_column: str | None = "topic"
    partition_column: str = "partition"
    offset_column: str = "offset"
    where: Mapping[str, Any] = field(default_factory=dict)


class ForeignRows(NamedTuple):
    """Rows of the audited selection that are outside the window, by topic and partition."""

    topic: str | None
    partition: int | None
    first: int | None
    """The lowest offset; ``None`` if no row has one."""
    last: int | None
    rows: int


@dataclass(frozen=True)
class TableRows:
    """
    The rows that a table has for a window.

    :param rows: rows with an offset in the window.
    :param missing: offsets of the window without a row; ``doubled``: with several rows.
    :param unlisted: offsets that were not compared, because the table has too many differences.
    :param foreign: rows of the selection outside the window; empty if rows of other windows are expected.
    """

    rows: int
    missing: RangesByPartition = field(default_factory=dict)
    doubled: RangesByPartition = field(default_factory=dict)
    unlisted: RangesByPartition = field(default_factory=dict)
    foreign: Sequence[ForeignRows] = ()


class Sums(NamedTuple):
    """Aggregates of the rows of one partition's range, from one SQL statement."""

    rows: int
    total: int
    """The sum of ``(offset + shift) ** 4 % PRIME``, see :mod:`airflow_kafka_offsets.model.fingerprint`."""
    first: int
    last: int


class Difference(NamedTuple):
    """A row whose offset is not the previous row's offset plus one, with rows in order of offsets."""

    partition: TopicPartition
    before: int
    offset: int


def compare_rows(
    ranges: OffsetRanges,
    fingerprint: Fingerprint,
    sums: Mapping[TopicPartition, Sums],
    read_differences: Callable[[Sequence[TopicPartition]], Iterable[Difference]],
    most: int = MOST_DIFFERENCES,
) -> TableRows:
    """
    Compare the sums of a table with a window, and read the partitions that differ.

    :param sums: the aggregates of each partition that has a row in its range.
    :param read_differences: returns the differences, partition by partition and in order of offsets. Only the
        first ``most`` are read; offsets that may be after them are unlisted.
    :raises AuditError: if rows were added or removed between the two reads.
    """
    gaps: dict[TopicPartition, list[tuple[int, int]]] = {
        tp: []
        for tp, each in sorted(sums.items())
        if not fingerprint.matches(ranges[tp], each.rows, each.total)
    }
    doubled: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in gaps}
    listed: Difference | None = None
    last_listed: Difference | None = None
    for number, difference in enumerate(read_differences(list(gaps)) if gaps else ()):
        if number == most:
            last_listed = listed
            break
        tp, before, offset = listed = difference
        if offset == before:
            doubled[tp].append((offset, offset + 1))
        else:
            gaps[tp].append((before + 1, offset))
    missing = {tp: merge([offsets]) for tp, offsets in ranges.items() if tp not in sums}
    unlisted: dict[TopicPartition, list[tuple[int, int]]] = {}
    for tp in gaps:
        offsets, (rows, _, first, last) = ranges[tp], sums[tp]
        end = offsets.end
        if last_listed is not None and tp == last_listed.partition:
            end = last_listed.offset
        # A database may order topics otherwise, so a partition without a difference may come after the last.
        elif last_listed is not None and not (gaps[tp] or doubled[tp]):
            end = offsets.start
        edges = [(offsets.start, min(first, end)), (max(last + 1, offsets.start), end)]
        missing[tp], unlisted[tp] = merge([*gaps[tp], *edges]), [(end, offsets.end)]
        lacking, surplus = sum(each.size for each in missing[tp]), len(doubled[tp])
        found = offsets.size - lacking + surplus
        if end == offsets.end and (rows != found or not (lacking or surplus)):
            raise AuditError(
                f"{tp}: the table changed while it was read: first {rows} rows were found for the "
                f"{offsets.size} offsets of the window, then {found}: audit it after the tasks that write to "
                "it have ended",
                retriable=True,
            )
    total = sum(each.rows for each in sums.values())
    return TableRows(total, merge_each(missing), merge_each(doubled), merge_each(unlisted))


def whole_number(value: object, column: str) -> int:
    """Return a number that was read from a table; raise a UsageError if it is not a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Decimal) and value.is_finite() and value == int(value):
        return int(value)
    raise UsageError(
        f"column {column!r} holds {quote(value)} ({type(value).__name__}); expected whole "
        "numbers: correct the name of the column, or audit a view in which it is a BIGINT"
    )


def enclosing_range(ranges: Mapping[TopicPartition, OffsetRange]) -> OffsetRange:
    """Return the lowest start and the highest end of all partitions."""
    return OffsetRange(min(each.start for each in ranges.values()), max(each.end for each in ranges.values()))


def parse_where(value: object, parameter: str) -> dict[str, Any]:
    """
    Read a filter, column -> value or list of accepted values, without SQL: names are quoted and values bound.

    :raises UsageError: if the filter or a value is empty, because a template that renders nothing would
        select no rows, or the wrong ones.
    """
    if isinstance(value, str):
        value = load_json_parameter(value, parameter, _FORM)
    if not isinstance(value, Mapping) or not value:
        raise unexpected(parameter, value, _FORM)
    for column, wanted in value.items():
        several = isinstance(wanted, list | tuple)
        values = list(wanted) if several else [wanted]
        if not isinstance(column, str) or not column.strip():
            raise parameter_error(
                parameter, f": found {quote(column)} as the name of a column; expected {_FORM}"
            )
        if not values or not all(isinstance(each, _VALUES) and not is_blank(each) for each in values):
            raise parameter_error(
                parameter,
                f": found {quote(wanted)} for column {quote(column)}; expected a text, a number, a date, or "
                "a list of these; not an empty value",
            )
    return dict(value)
