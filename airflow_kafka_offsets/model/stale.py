"""Detection of stale moves: the pipeline has continued since, so that undoing the move undoes more."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition


def partitions_moved_on(
    now: Mapping[TopicPartition, int | None], back: Offsets, moved_to: Offsets
) -> list[TopicPartition]:
    """
    Return the partitions whose position neither a move nor its recovery explains.

    After a move back, a position between its two ends is that of an unfinished recovery, whose records were
    already read once. A move forward leads to no position in between.

    :param back: the offsets before the move, which an undo would restore.
    :param moved_to: the offsets after the move.
    """
    moves = {tp: (before, moved_to.get(tp, before)) for tp, before in back.items()}
    return [
        tp
        for tp, (before, to) in moves.items()
        if (at := now.get(tp)) is not None and at not in (before, to) and not to < at < before
    ]


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
