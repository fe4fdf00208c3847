"""
The moves of a checkpoint that a commit knows, so that the commit detects a concurrent move.

Every move of a checkpoint writes an archive before it changes a file. A commit reads the archives three
times: before it reads the position, before it writes, and after it has written. A new archive means a
concurrent move. The metadata of each commit has the number of the newest move that the commit knew. So the
group does not stay at an old position if a move overtook the commit and the process of the commit then died.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import takewhile

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.errors import CheckpointMovedError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition, committed_offsets, summarize
from airflow_kafka_offsets.model.recovery import MovedCheckpoint, shortfall

log = logging.getLogger(__name__)


class KnownMoves(ArchivedMoves):
    """The moves of a checkpoint, and what they mean for the commits of its groups."""

    def unfinished_recovery(
        self, sources: Mapping[str, Offsets], commits: Mapping[str, Commits] | None = None
    ) -> str | None:
        """
        Return a sentence about a recovery that is neither finished nor undone; ``None`` if each one is.

        A run that times out, is cleared or is deleted leaves one, because Airflow then runs no teardown.

        :param sources: source -> offsets of the newest finished batch.
        :param commits: group -> its last commits in the partitions to check.
        """
        moved = next(self.in_effect(), None)
        if moved is None or not moved.recovery or not moved.done:
            return None
        missed = MovedCheckpoint(self.checkpoint.location, moved.before, moved.after, sources).shortfall
        if not missed and commits:
            before, after = self.group_offsets(moved)
            for group, held in commits.items():
                to = {tp: offset for tp, offset in after.get(group, {}).items() if tp in held}
                missed = missed or shortfall(
                    f"group {group!r}", before.get(group, {}), to, committed_offsets(held)
                )
        if not missed:
            return None
        return (
            f"recovery {moved} is neither finished nor undone: {missed}: let its run continue, or undo the "
            f"recovery: {self.restore_command(moved.name)}"
        )

    def log_unfinished_recovery(self, sources: Mapping[str, Offsets], metadata: CommitMetadata) -> None:
        """Log a warning about a recovery of another run that is neither finished nor undone."""
        moved = next(self.in_effect(), None)
        own = moved is not None and metadata.is_same_run(moved.made_by)
        if not own and (text := self.unfinished_recovery(sources)):
            log.warning("%s", text)

    def check_no_later_move(self, outcome: str) -> None:
        """Raise a CheckpointMovedError, with the commits' outcome, if a move began after these were read."""
        now = next(reversed(ArchivedMoves(self.checkpoint)), None)
        if now is not None and now.number != self.number:
            raise CheckpointMovedError(
                f"{self.checkpoint.location}: move {now} started while its position was being committed; "
                f"{outcome}"
            )

    def check_batch_since_reset(
        self, run: CommitMetadata, positions: Mapping[TopicPartition, int], client: OffsetsClient
    ) -> None:
        """
        Check that the query has finished a batch since a reset in the same run moved its checkpoint back.

        :param run: metadata of the commit, with its run and its query.
        :raises PlanRefusedError: if it has not, because the job was marked as success or did nothing.
        """
        moved = next(self.in_effect(), None)
        # A commit by the command line belongs to no run, so there is nothing to check.
        if moved is None or not run.run or not moved.name.endswith("-seek"):
            return
        if not run.is_same_run(moved.made_by) or moved.has_finished_batch(self.checkpoint.read()):
            return
        # Partitions that moved forward, for example to the log end, may have had no record to read.
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
                f"{self.checkpoint.location}: task {moved.made_by.task} of this run moved it (archive "
                f"{moved.name}), and the query has finished no batch since, although there are records to "
                f"read on {summarize(unread)}: run the job again, or clear it with this task",
                retriable=True,
            )

    def rewindable_partitions(
        self, query: str, group_id: str, commits: Commits
    ) -> Collection[TopicPartition]:
        """Return the partitions that this query committed last before a move of checkpoint and group."""
        known: dict[TopicPartition, int] = {}
        for tp, commit in commits.items():
            made = CommitMetadata.of(commit)
            if made.query == query and made.move is not None and made.move < self.number:
                known[tp] = made.move
        if not known:
            return ()
        first = min(known.values())
        moves = {
            each.number: self.group_offsets(each)[1]
            for each in takewhile(lambda each: each.number > first, self.of_query)
            if not each.undone
        }
        return {
            tp
            for tp, move in known.items()
            if any(number > move and tp in groups.get(group_id, ()) for number, groups in moves.items())
        }
