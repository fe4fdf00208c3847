"""Detection of stale moves: the pipeline has continued since, so that undoing the move undoes more."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition


def partitions_moved_on(
    now: Mapping[TopicPartition, int | None], back: Offsets, moved_to: Offsets
) -> list[TopicPartition]:
    """
    Return the partitions that are outside the range between the two ends of a move.

    A position within that range is that of an unfinished recovery, whose records were already read once.

    :param back: the offsets before the move, which an undo would restore.
    :param moved_to: the offsets after the move.
    """
    found = []
    for tp, before in back.items():
        ends = sorted((before, moved_to.get(tp, before)))
        at = now.get(tp)
        if at is not None and at != before and not ends[0] <= at <= ends[1]:
            found.append(tp)
    return found


def later_progress(move: str, reasons: Collection[str], changes: Collection[tuple[int, int]]) -> str:
    """
    Return how a pipeline has continued since a move, and what an undo does; empty if nothing would change.

    :param reasons: the later moves, batches and commits, as text.
    :param changes: the current offset and the restored offset of each partition.
    """
    if not reasons or all(now == back for now, back in changes):
        return ""
    skipped = sum(max(0, back - now) for now, back in changes)
    records = f"{sum(max(0, now - back) for now, back in changes):,} records are read again"
    if skipped:
        records += f", and {skipped:,} are skipped"
    return f"the pipeline has continued since {move}: {'; '.join(reasons)}. If that move is undone, {records}"


def offset_changes(now: Mapping[TopicPartition, int | None], back: Offsets) -> list[tuple[int, int]]:
    """Return the current and the restored offset of each partition that has a current offset."""
    return [(at, offset) for tp, offset in back.items() if (at := now.get(tp)) is not None]
