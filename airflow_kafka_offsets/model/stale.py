"""Whether a move is stale: the pipeline has gone on since, so that taking it back would undo more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition
from airflow_kafka_offsets.model.wording import parameter_text


def partitions_moved_on(
    now: Mapping[TopicPartition, int | None], back: Offsets, moved_to: Offsets
) -> list[TopicPartition]:
    """
    Return the partitions that have left the offsets between which a move took them.

    Between them a recovery that was not finished has come to, and what it was to read again was read before.

    :param back: the offsets from before the move, which it would be taken back to.
    :param moved_to: where the move has put them.
    """
    found = []
    for tp, before in back.items():
        ends = sorted((before, moved_to.get(tp, before)))
        at = now.get(tp)
        if at is not None and at != before and not ends[0] <= at <= ends[1]:
            found.append(tp)
    return found


@dataclass(frozen=True)
class LaterProgress:
    """
    What has followed a move that is to be taken back.

    :param move: the name of the move.
    :param reasons: the later moves, batches and commits, as text.
    :param offset_changes: from where to where the partitions would be taken back.
    """

    move: str
    reasons: tuple[str, ...]
    offset_changes: tuple[tuple[int, int], ...]

    @property
    def read_again(self) -> int:
        """Records that were read and would be read again."""
        return sum(max(0, now - back) for now, back in self.offset_changes)

    @property
    def skipped(self) -> int:
        """Records that are still to be read and would be skipped."""
        return sum(max(0, back - now) for now, back in self.offset_changes)

    def __bool__(self) -> bool:
        return bool(self.reasons) and any(now != back for now, back in self.offset_changes)

    def __str__(self) -> str:
        records = f"{self.read_again:,} records are read again"
        if self.skipped:
            records += f", and {self.skipped:,} are skipped"
        return (
            f"the pipeline has gone on since {self.move}: {'; '.join(self.reasons)}. If that move is taken "
            f"back, {records}"
        )

    @property
    def refusal(self) -> str:
        """Why the move is not taken back unless that is allowed."""
        return (
            f"{self}: take back the newest move, reset to where you want it, or set "
            f"{parameter_text('allow_stale', True)}"
        )


def offset_changes(now: Mapping[TopicPartition, int | None], back: Offsets) -> list[tuple[int, int]]:
    """Return from where to where partitions go that have an offset."""
    return [(at, offset) for tp, offset in back.items() if (at := now.get(tp)) is not None]
