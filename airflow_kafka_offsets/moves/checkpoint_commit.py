"""
Commits the position of a checkpoint that somebody else may be moving at the same time.

Every move of a checkpoint writes an archive before it changes anything. So who commits looks at the archives before it
reads the position, before it writes and after it has written: what changed in between is a move. Each commit says with
which move it knew the checkpoint, so that a commit that was overtaken by a move, and whose process then died, does not
hold the group at the old position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import (
    Archive,
    newest_archive,
    read_archives,
    read_attachment,
)
from airflow_kafka_offsets.checkpoint.move import has_run_since, unfinished_refusal
from airflow_kafka_offsets.errors import CheckpointMovedError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Commits, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import GROUPS_FILE, read_images
from airflow_kafka_offsets.moves.commit import apply_plans

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.plan import OffsetPlan


@dataclass(frozen=True)
class KnownMoves:
    """
    The moves of a checkpoint, as they were before its position was read.

    :param checkpoint: whose moves.
    :param newest: the newest move; ``None`` if it was never moved.
    """

    checkpoint: SparkCheckpoint
    newest: Archive | None

    @classmethod
    def of(cls, checkpoint: SparkCheckpoint) -> KnownMoves:
        """
        Look at the moves of a checkpoint, before its position is read.

        :raises MoveUnfinishedError: if a move was begun and not finished.
        """
        newest = newest_archive(checkpoint)
        if newest is not None and not newest.over and not has_run_since(checkpoint, newest):
            raise unfinished_refusal(checkpoint, newest)
        return cls(checkpoint, newest)

    @property
    def number(self) -> int:
        """Number of the newest move, 0 without one: what a commit says of itself."""
        return 0 if self.newest is None else self.newest.number

    def check(self, outcome: str) -> None:
        """
        See that no move has begun since.

        :param outcome: what was written, for the error text.
        :raises CheckpointMovedError: if one has.
        """
        now = newest_archive(self.checkpoint)
        if now is not None and now.number != self.number:
            raise CheckpointMovedError(
                f"{self.checkpoint.location}: move {now} began while its position was being committed; {outcome}"
            )

    def check_work(
        self, run: CommitMetadata, positions: Mapping[TopicPartition, int], client: OffsetsClient
    ) -> None:
        """
        See that the query has worked since a reset of this same run has moved it back.

        :param run: who commits.
        :param positions: the checkpoint's.
        :raises PlanRefusedError: if it has not: the job was marked, or did nothing.
        """
        moved = self.newest
        if moved is None or not run.run or moved.undone or not moved.name.endswith("-seek"):
            return
        if (moved.by.dag, moved.by.run) != (run.dag, run.run) or has_run_since(self.checkpoint, moved):
            return
        # Where it moved forward, to the end of the log, there was nothing to read when it was moved.
        back = {
            tp
            for source, offsets in moved.after.items()
            for tp, offset in offsets.items()
            if offset < moved.before.get(source, {}).get(tp, 0)
        }
        logs = client.log_ranges(back & positions.keys())
        unread = [tp for tp in logs if positions[tp] < logs[tp].end]
        if unread:
            raise PlanRefusedError(
                [
                    f"{self.checkpoint.location}: task {moved.by.task} of this run moved it (archive {moved.name}), and the query "
                    f"has finished no batch since, although there are records to read on {summarize(unread)}: run the job "
                    "again, or clear it with this task"
                ],
                retriable=True,
            )

    def may_go_back(self, query: str, group_id: str, commits: Commits) -> Collection[TopicPartition]:
        """
        Return the partitions in which a group holds what an overtaken commit has written.

        That is a commit from this checkpoint, made when a later move of checkpoint and group was not known.
        """
        known: dict[TopicPartition, int] = {}
        for tp, commit in commits.items():
            said = CommitMetadata.parse(commit.metadata) if commit is not None else None
            if said is not None and said.query == query and said.move is not None and said.move < self.number:
                known[tp] = said.move
        if not known:
            return ()
        later = [
            each
            for each in read_archives(self.checkpoint)
            if not each.undone and each.number > min(known.values())
        ]
        moves = {
            each.number: read_images(read_attachment(self.checkpoint, each, GROUPS_FILE))[1] for each in later
        }
        return {
            tp
            for tp, move in known.items()
            if any(number > move and tp in groups.get(group_id, ()) for number, groups in moves.items())
        }


def commit_position(
    client: OffsetsClient, moves: KnownMoves, plans: Sequence[OffsetPlan], metadata: CommitMetadata
) -> None:
    """
    Commit plans that were made of a checkpoint's position, if it is not moved meanwhile.

    :param moves: the moves that were known before the position was read.
    :raises CheckpointMovedError: if a move has begun; the text says whether anything was written.
    """
    moves.check("nothing was written")
    apply_plans(client, plans, metadata)
    moves.check("what was committed may be from before the move, and is to be committed again")
