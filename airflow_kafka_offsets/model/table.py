"""Tables of plans and readings, as lines of text or as columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.parameters import iso_time
from airflow_kafka_offsets.model.text import escape_controls, plural

DELETED: Final = "deleted"
END: Final = "end"
"""Pseudo-timestamps of an offset whose record is deleted, and of an offset after which no record follows."""

TimesByOffset = Mapping[tuple[TopicPartition, int], int | Literal["deleted"] | None]
"""
Partition and offset -> timestamp of the first record at or after the offset, in ms since 1970; ``None`` if no
record follows, :data:`DELETED` below the log start.
"""

ROWS = 100
"""Up to this number of partitions, a plan's table shows all of them; else only :data:`FURTHEST`."""

FURTHEST = 20

T = TypeVar("T")


def furthest_moves(moves: Sequence[T], change: Callable[[T], int]) -> tuple[list[T], str]:
    """Return the moves that a table shows, in order, and a line about the others (``""`` without others)."""
    if len(moves) <= ROWS:
        return list(moves), ""
    numbers = sorted(range(len(moves)), key=lambda number: -abs(change(moves[number])))
    rest = [change(moves[number]) for number in numbers[FURTHEST:]]
    changed = len(rest) - rest.count(0)
    line = (
        f"... and {plural(len(rest), 'more partition')}: {changed:,} change, {sum(rest):+,} offsets in total"
    )
    return [moves[number] for number in sorted(numbers[:FURTHEST])], line


def plan_text(
    name: str,
    does: str,
    rows: Sequence[Sequence[str]],
    remarks: Iterable[str],
    refusals: Sequence[str],
    *,
    refused: bool,
) -> str:
    """Return a plan as lines for a log; the reasons of a ``refused`` move are in its error instead."""
    reasons = () if refused else (f"refused: {refusal}" for refusal in refusals)
    heading = f"{name}{' (refused, not applied)' if refused else ''}: {does}"
    return "\n".join([heading, *align_rows(rows), *filter(None, remarks), *reasons])


def align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; control characters are escaped."""
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def offset_cell(offset: int | None) -> str:
    """Return an offset for a table; ``-`` for ``None``."""
    return "-" if offset is None else str(offset)


def time_cells(times: TimesByOffset, topic_partition: TopicPartition, *offsets: int | None) -> list[str]:
    """Return the times at offsets for a table, see :func:`time_text`: no cells if no time was looked up."""
    return [time_text(times, topic_partition, offset) or "-" for offset in offsets] if times else []


def time_text(times: TimesByOffset, topic_partition: TopicPartition, offset: int | None) -> str | None:
    """Return the time at an offset, :data:`DELETED`, or :data:`END`; ``None`` if unknown."""
    if offset is None or (topic_partition, offset) not in times:
        return None
    time = times[topic_partition, offset]
    return END if time is None else time if isinstance(time, str) else iso_time(time)


def times_json(
    times: TimesByOffset, moves: Iterable[tuple[TopicPartition, int | None, int | None]]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the known timestamps ``before`` and ``after`` moves, each as ``{topic: {partition: text}}``."""
    found: dict[str, dict[str, dict[str, str]]] = {"before": {}, "after": {}}
    for tp, *offsets in moves:
        for name, offset in zip(found, offsets, strict=True):
            if text := time_text(times, tp, offset):
                found[name].setdefault(tp.topic, {})[str(tp.partition)] = text
    return found


def to_columns(rows: Iterable[tuple[Any, ...]], names: Collection[str]) -> dict[str, list[Any]]:
    """Return rows as name -> column."""
    found = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, found, strict=True))
