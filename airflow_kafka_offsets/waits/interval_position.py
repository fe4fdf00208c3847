"""The position that completes intervals, and the moves of its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.checkpoint.archive import read_attachment
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Positions, furthest_behind, summarize
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.interval_feed import CompletingPosition, Emitted
from airflow_kafka_offsets.readings.log_checks import known_log_ids
from airflow_kafka_offsets.readings.positions import check_in_log
from airflow_kafka_offsets.readings.record_progress import RecordProgress
from airflow_kafka_offsets.waits.wait import Wait


@dataclass(frozen=True)
class IntervalPosition(Wait):
    """The position of a group or a checkpoint, read once; one in a recreated topic is refused."""

    def _owner(self, checkpoint: SparkCheckpoint | None) -> dict[str, Any]:
        """
        Return the owner of the position, as plain JSON.

        A new query in the same location may have skipped records that the earlier one had not read.
        """
        whose: dict[str, Any] = {"group_id": plain_names(self.group_id)}
        if checkpoint is not None and self.position_is_checkpoint:
            whose = {"checkpoint_location": self.checkpoint_location, "query_id": checkpoint.query_id()}
        topics = None if self.topics is None else self.selection.scope.as_json()
        return {"kafka_config_id": self.kafka_config_id, "topics": topics, **whose}

    def logs_now(self, client: OffsetsReader, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics: other waits compare only the cluster."""
        return known_log_ids(client, topics)

    def read(
        self,
        client: OffsetsReader,
        checkpoint: SparkCheckpoint | None,
        idle_after: float | None,
        kept: Sequence[Emitted | None] = (),
    ) -> CompletingPosition | None:
        """
        Return the position and its moves; ``None`` before a checkpoint's first batch.

        :param idle_after: see :class:`~airflow_kafka_offsets.readings.record_progress.RecordProgress`.
        :param kept: what was emitted for each asset.
        :raises PlanRefusedError: if retention has deleted unread records, or the topics of a checkpoint were
            created again since it was last read.
        """
        seen = [each.move for each in kept if each is not None and each.move is not None]
        # Read before the position: a move in between counts in the next run.
        move, targets = self._moved_to(checkpoint, min(seen, default=None))
        known = self.read_checkpoint(checkpoint)
        found = self.find_positions(client, known)
        if not found:
            return None
        positions = furthest_behind(found.values())
        logs = client.log_ranges(positions)
        for name, each in found.items():
            check_in_log(client, name, each, logs)
        self.check_topics(client, known, found)
        lost = {tp: gone for tp, at in positions.items() if at is not None and (gone := logs[tp].lost(at))}
        if lost:
            raise PlanRefusedError(
                f"retention has deleted {plural(sum(lost.values()), 'unread record')} of {summarize(lost)}, "
                "so that their intervals cannot be complete: reset the position with "
                f"{parameter_text('to_offset', 'earliest')}; the intervals are then emitted as the rest is "
                "read"
            )
        times = RecordProgress(client, positions, logs, now=int(time.time() * 1000), idle_after=idle_after)
        moved = RecordProgress(
            client, {tp: at for tp, at in targets.items() if tp in logs}, logs, now=times.now
        )
        of_logs = UNKNOWN_LOGS
        if self.position_is_checkpoint:
            of_logs = self.logs_now(client, {tp.topic for tp in logs})
        position = CompletingPosition(self._owner(checkpoint), move, times, moved, of_logs)
        remedy = "move the checkpoint to the present topics (ResetOffsetsOperator)"
        for emitted in kept:
            recorded = position.recorded_logs(emitted)
            PlanRefusedError.raise_if(other_logs_refusals("the checkpoint", recorded, of_logs, remedy=remedy))
        return position

    def _moved_to(
        self, checkpoint: SparkCheckpoint | None, since: int | None
    ) -> tuple[int | None, Positions]:
        """
        Return the number of the newest move that is over, and the lowest targets of moves after ``since``.

        A move that was interrupted is over when the query has run since. A move that was undone does not
        count. If the position is a group's, a move that did not move groups does not count either.

        :param since: number of a move; ``None`` for the newest one.
        """
        if checkpoint is None:
            return None, {}
        archive = ArchivedMoves(checkpoint)
        unfinished = archive.unfinished()
        moves = [each for each in archive if each is not unfinished]
        targets: list[Positions] = []
        for move in moves:
            if since is None or move.number <= since or move.undone or move.abandoned:
                continue
            if self.position_is_checkpoint or read_attachment(checkpoint, move, "after.csv"):
                targets += [dict(offsets) for offsets in move.after.values()]
        newest = moves[-1].number if moves else 0
        return newest, furthest_behind(targets)
