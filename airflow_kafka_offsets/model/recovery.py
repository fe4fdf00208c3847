"""
What a reset that was cleared, and the teardown that takes a reset back, conclude from the tasks of their run.

Airflow clears a setup and its teardown with any task between them, leaves alone the tasks that were not
selected, skips what is left of a run that is given up, runs its teardown, and counts no skipped task as a
failure: failures alone decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

SUCCESS = "success"
FAILED = frozenset({"failed", "upstream_failed"})

TaskStates = Mapping[str, Sequence["str | None"]]
"""
Task id -> the states of its instances in this run, one for each map index; ``None`` for one that is to run.
"""


@dataclass(frozen=True)
class Work:
    """The tasks between a reset and its teardown: those that read again what was moved."""

    states: TaskStates
    downstream: Mapping[str, Collection[str]]
    """Task id -> the tasks of them that come after it."""

    @property
    def done(self) -> list[str]:
        """Tasks all of whose instances have succeeded."""
        return sorted(task for task, states in self.states.items() if set(states) == {SUCCESS})

    @property
    def not_done(self) -> list[str]:
        """The other tasks."""
        return sorted(set(self.states) - set(self.done))

    @property
    def partly_done(self) -> list[str]:
        """Tasks of which some instances have succeeded, and others have not."""
        return [task for task in self.not_done if SUCCESS in self.states[task]]

    @property
    def failed(self) -> list[str]:
        """Tasks of which an instance has failed, or could not run because another one had."""
        return sorted(task for task, states in self.states.items() if FAILED.intersection(states))

    @property
    def cut_off(self) -> list[str]:
        """
        Tasks that have succeeded although one before them is to run again.

        They were left out when that one was cleared, and would not notice what it does now. If every task has
        succeeded, the reset was cleared alone, and these are all of them.
        """
        if not self.not_done:
            return self.done
        after = {later for task in self.not_done for later in self.downstream.get(task, ())}
        return [task for task in self.done if task in after]

    def describe(self, tasks: Collection[str]) -> str:
        """Name tasks with their states."""
        return ", ".join(
            f"{task}: {', '.join(sorted({state or 'not run' for state in self.states[task]}))}"
            for task in sorted(tasks)
        )


@dataclass(frozen=True)
class LastCommit:
    """The last commit of a partition: where it is, and who made it (``None`` if it does not say)."""

    offset: int
    by: CommitMetadata | None


def is_finished(
    commits: Mapping[TopicPartition, LastCommit | None],
    reached: Mapping[TopicPartition, int],
    movers: Collection[str],
    move: int | None = None,
) -> bool:
    """
    Return whether the pipeline has gone on from a move: it was committed since, past where it was.

    :param commits: the last commit of the partitions that moved.
    :param reached: the offset that each of them has to be at, or past: where it was before the move, and
        where it went. Partitions that are not in it only need a commit since.
    :param movers: the identities of the tasks that reset and restore.
    :param move: number of the checkpoint's move: a commit that did not know it was overtaken, and does not
        count.
    """

    def since(tp: TopicPartition, commit: LastCommit | None) -> bool:
        if commit is None or commit.offset < reached.get(tp, 0):
            return False
        if (by := commit.by) is None:
            return True
        overtaken = move is not None and by.move is not None and by.move < move
        return not overtaken and by.identity not in movers

    return bool(commits) and all(since(tp, commit) for tp, commit in commits.items())
