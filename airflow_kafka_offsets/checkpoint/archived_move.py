"""One move in a checkpoint's archive."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import get_args

from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, MoveKind
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds

DIRECTORY = "_kafka_offsets"
MANIFEST = "manifest.json"
DONE, UNDONE = "done", "undone"
UNDO = "undo"
"""The name of a restore before 0.1.0: archives of that kind are still read."""

BATCHES_COMPARED = 100
"""Number of newest batches that may show a recreated topic; Spark keeps 100 (``minBatchesToRetain``)."""
KINDS = (*get_args(MoveKind), UNDO)
# Nine digits at most: names are read from the storage, and the next number is one higher.
ARCHIVE_NAME = re.compile(f"([0-9]{{4,9}})-({'|'.join(KINDS)})")


def archive_number(name: str) -> int:
    """Return the number of an archive's move, taken from the archive's name."""
    return int(name.partition("-")[0])


def newest_finished(newest_committed: int, paths: Iterable[str]) -> int:
    """
    Return the newest batch that is finished before or after a move; -1 without one.

    :param newest_committed: the newest batch in ``commits/`` before the move, -1 without one.
    :param paths: the files that the move changes.
    """
    split = (path.split("/") for path in paths)
    return max(newest_committed, *(int(number) for directory, number in split if directory == "commits"), -1)


@dataclass(frozen=True, kw_only=True)
class ArchivedMove(CheckpointPlan):
    """
    The plan of a move as its archive has kept it, without its steps, and how far the move has come.

    ``carried`` is about the offsets only: the copies of the files are from this move. Without ``log_ids`` an
    earlier version wrote the archive, or the move was made without a broker.

    :param created: when the archive was written, ISO 8601.
    :param newest_planned: the newest batch in ``offsets/`` before the move; ``newest_committed`` likewise.
    :param made_by: run and task that made the move, or the command line.
    :param files: path -> digests of the file before the move and as planned, ``None`` if there is no file.
    :param nonce: name of its claim.
    :param abandoned: whether a failover was interrupted before it changed the position, and the query has run
        since, so that the query never left its cluster.
    """

    archive: str
    created: str
    newest_planned: int
    newest_committed: int
    made_by: CommitMetadata
    files: Mapping[str, tuple[str | None, str | None]]
    nonce: str
    done: bool
    undone: bool
    abandoned: bool = False

    @property
    def name(self) -> str:
        """Name of its directory, such as ``0001-seek``."""
        return self.archive

    @property
    def is_over(self) -> bool:
        """Whether the move was finished or taken back."""
        return self.done or self.undone

    @property
    def is_failover(self) -> bool:
        """Whether it was a move to another cluster, and not the restore of one."""
        return self.kind == "failover" or (self.left_logs.is_other_cluster(self.log_ids) and not self.copies)

    @property
    def changes_logs(self) -> bool:
        """Whether it was a move to another cluster, or in a topic that was created again; no restore."""
        return self.is_failover or (bool(self.left_logs) and not self.copies)

    @property
    def logs_before(self) -> LogIds:
        """The ids of the logs that its offsets before belong to, as far as they are known."""
        return self.left_logs if self.is_failover else self.log_ids | self.left_logs

    @property
    def has_failed_over(self) -> bool:
        """Whether it has moved the query to another cluster, or still may, and was not taken back."""
        return self.is_failover and not (self.undone or self.abandoned)

    def concerns(self, topics: Collection[str]) -> bool:
        """Whether it has moved one of these topics, or may have; without topics, always."""
        return not (topics and self.log_ids.topics) or not self._topics.isdisjoint(topics)

    @cached_property
    def _topics(self) -> set[str]:
        moved = (tp.topic for offsets in self.offsets_moved(()).values() for tp in offsets)
        return {*self.log_ids.topics, *moved}

    @property
    def written(self) -> list[int]:
        """The batches in ``offsets/`` that it has written: not those that a truncation removes."""
        paths = (path.split("/") for path, (_, after) in self.files.items() if after is not None)
        return [int(number) for directory, number in paths if directory == "offsets"]

    @property
    def newest_finished(self) -> int:
        """The newest batch that is finished before or after the move; -1 without one."""
        return newest_finished(self.newest_committed, self.files)

    @property
    def created_at(self) -> int:
        """When it was written, in seconds since 1970."""
        return int(datetime.fromisoformat(self.created).timestamp())

    @property
    def number(self) -> int:
        """The move's number in the checkpoint, from 1."""
        return archive_number(self.name)

    def resume(self, plan: CheckpointPlan) -> CheckpointPlan:
        """Return a plan of the same request as the rest of the move; unchanged if the query has run since."""
        if self.has_newer_batches(*plan.batches):
            return plan
        plan = replace(plan, repeats=self.is_over)
        return replace(plan, before=self.before, archive=self.name, discarded=self.discarded, resumes=True)

    def has_newer_batches(self, planned: Collection[int], committed: Collection[int]) -> bool:
        """Whether batches of a checkpoint were planned or finished after the move."""
        # A restore puts back batches that are newer than the newest batch at its start.
        others = (batch for batch in planned if f"offsets/{batch}" not in self.files)
        finished = (batch for batch in committed if f"commits/{batch}" not in self.files)
        return (
            max(others, default=-1) > self.newest_planned or max(finished, default=-1) > self.newest_committed
        )

    def has_finished_batch(self, state: CheckpointState) -> bool:
        """Whether the query has finished a batch since a seek; an unfinished batch does not count."""
        return state.batch_id is not None and state.batch_id > self.newest_committed

    def __str__(self) -> str:
        return f"{self.name} ({self.made_by}, {self.created})"
