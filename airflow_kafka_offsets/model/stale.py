"""Detection of stale moves: the pipeline has continued since, so that undoing the move undoes more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition
from airflow_kafka_offsets.model.wording import parameter_text


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
    found = []
    for tp, before in back.items():
        at, to = now.get(tp), moved_to.get(tp, before)
        if at is not None and at not in (before, to) and not to < at < before:
            found.append(tp)
    return found


@dataclass(frozen=True)
class LaterProgress:
    """
    The progress of a pipeline after a move that a task is about to undo.

    :param move: the name of the move.
    :param reasons: the later moves, batches and commits, as text.
    :param offset_changes: current offset and restored offset of each partition.
    """

    move: str
    reasons: tuple[str, ...]
    offset_changes: tuple[tuple[int, int], ...]

    @property
    def read_again(self) -> int:
        """Records that the pipeline has read and would read again."""
        return sum(max(0, now - back) for now, back in self.offset_changes)

    @property
    def skipped(self) -> int:
        """Unread records that the pipeline would skip."""
        return sum(max(0, back - now) for now, back in self.offset_changes)

    def __bool__(self) -> bool:
        return bool(self.reasons) and any(now != back for now, back in self.offset_changes)

    def __str__(self) -> str:
        records = f"{self.read_again:,} records are read again"
        if self.skipped:
            records += f", and {self.skipped:,} are skipped"
        return (
            f"the pipeline has continued since {self.move}: {'; '.join(self.reasons)}. If that move is "
            f"undone, {records}"
        )

    @property
    def refusal(self) -> str:
        """Why the move is not undone without permission."""
        return (
            f"{self}: undo the newest move, reset to the position that you want, or set "
            f"{parameter_text('allow_stale', True)}"
        )


def offset_changes(now: Mapping[TopicPartition, int | None], back: Offsets) -> list[tuple[int, int]]:
    """Return the current and the restored offset of each partition that has a current offset."""
    return [(at, offset) for tp, offset in back.items() if (at := now.get(tp)) is not None]
