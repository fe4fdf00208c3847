"""
Verdict on a partition: whether group and checkpoint are at the same offset, and it is in the log.

Every partition gets exactly one verdict, the first of these that applies:

1. ``topic gone``: the broker does not have the partition, so the positions cannot be compared.
2. ``topic recreated``: the positions belong to another log. The topic's id differs from the id that a commit
   or a move of the checkpoint has recorded; or a record that the batch has read is newer than the batch; or a
   position is beyond the log end. The distance between two positions then has no meaning.
3. ``not read``: the query does not read the topic, but the group has commits for it.
4. ``records lost``: the next position to read is below the log start. This is the checkpoint's position,
   because Spark ignores the group; it is the group's position only if the checkpoint has none. A group below
   the log start is only behind if its checkpoint is in the log.
5. ``expiring``: the next position to read has less headroom than ``min_headroom``, if that is given.
6. ``other query``: the group's last commit is from another query, so the positions cannot be compared.
7. ``group ahead`` of a checkpoint without a position: Spark will read the partition from its start, but the
   group has committed a later offset.
8. ``partition added``: the checkpoint has no position, and the group has no position or is at the log start.
9. ``no commit``: the checkpoint has a position, the group has none.
10. ``group behind`` or ``group ahead``: the two positions differ.
11. ``headroom unknown``: ``min_headroom`` is given, and the headroom cannot be determined.
12. ``in step``: the two positions are equal and in the log.

All verdicts count as drift except ``in step``, and except ``not read`` if no record follows the group's
commit. Within grace, ``no commit`` and ``group behind`` are judged as if the batch had been committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_kafka_offsets.model.headroom import UNCOUNTED, Headroom
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

Verdict = Literal[
    "in step",
    "group behind",
    "group ahead",
    "records lost",
    "expiring",
    "headroom unknown",
    "no commit",
    "partition added",
    "topic gone",
    "topic recreated",
    "not read",
    "other query",
]


def remedies() -> Mapping[Verdict, str]:
    """Return what to do about each verdict."""
    left_out = f"left out with {parameter_text('topics', ...)}"
    commit = dag_text("CommitOffsetsOperator", "'airflow-kafka-offsets group commit'")
    reset = dag_text("ResetOffsetsOperator", "'airflow-kafka-offsets group reset'")
    to_group = f"{reset} with {parameter_text('to_offset', 'committed')} moves the checkpoint to the group"
    return {
        "in step": "no action is needed",
        "group behind": (
            "the newest batch was not committed: run the task that commits; if that task has succeeded, "
            "find out which other task or tool moves the group or the checkpoint. "
            f"{commit} moves the group to the checkpoint; {to_group}, and the query reads the records "
            "between them again"
        ),
        "group ahead": (
            "another task or tool moved the group, or the checkpoint is new or an older copy: find out "
            f"which of the two is right. {commit} with {parameter_text('allow_rewind', True)} moves the "
            f"group back to the checkpoint; {to_group}, and the query skips the records between them"
        ),
        "records lost": (
            "retention deleted records before they were read, and Kafka no longer has them: raise the "
            "topic's retention or run the query more often, load the records again from their source, and "
            "move the checkpoint and the group forward: a reset to committed with "
            f"{parameter_text('on_out_of_range', 'clamp')} moves these partitions to their log start and "
            "leaves the others where they are"
        ),
        "expiring": (
            "retention will soon delete unread records: run the query now, or raise retention.ms of the "
            "topic until the query has caught up"
        ),
        "headroom unknown": (
            f"remove the reason, or omit {parameter_text('min_headroom')} for this pipeline and monitor its "
            "lag"
        ),
        "no commit": (
            "run the task that commits, or correct the name of the group; if it has run, Kafka has deleted "
            "the offsets of a group without members, or the group was deleted; a topic that the task leaves "
            f"out must be {left_out} here too"
        ),
        "partition added": (
            "run the query once: Spark reads a new partition from its start; then commit. A partition that "
            f"the query does not read must be {left_out}"
        ),
        "topic gone": (
            "the connection leads to another cluster, or the topic was deleted: correct the connection, "
            f"leave the topic out with {parameter_text('topics', ...)}, or give the query a new checkpoint"
        ),
        "topic recreated": (
            "the topic was deleted and created again, or the connection leads to another cluster: correct "
            "the connection, or give the query a new checkpoint; if the offsets are right there, commit once "
            f"with {parameter_text('allow_new_cluster', True)}"
        ),
        "not read": (
            "the query no longer reads the topic, so its new records are not read: let the query read the "
            "topic again; if the query dropped the topic on purpose, delete the group's offsets for it "
            f"({dag_text('left_topics of CommitOffsetsOperator, or ')}airflow-kafka-offsets group "
            "delete-offsets), use a new group, or leave the topic out with "
            f"{parameter_text('topics', ...)}"
        ),
        "other query": (
            "the group follows another query: give each query its own group; if this query replaces the "
            f"other one, commit once with {parameter_text('allow_new_query', True)}"
        ),
    }


PASSING: tuple[Verdict, ...] = ("group behind", "no commit")
"""Verdicts that the next run of the committing task corrects."""


@dataclass(frozen=True)
class PartitionDrift:
    """The positions of checkpoint and group in the log of one partition."""

    topic_partition: TopicPartition
    checkpoint: int | None
    """The checkpoint's position; ``None`` if its newest batch does not have the partition."""
    committed: int | None
    """The group's position; ``None`` without a commit."""
    log: LogRange | None
    """The start and the end of the log; ``None`` if the broker does not have the partition."""
    headroom: Headroom | None = None
    """Headroom of the next position to read; ``None`` if it was not measured."""
    min_headroom: float = 0.0
    """Required headroom in seconds."""
    recreated: bool = False
    """Whether the positions are known to belong to another log."""
    is_read: bool = True
    """Whether the query reads the topic."""
    other_query: bool = False
    """Whether the group's last commit is from another query."""

    @property
    def position(self) -> int | None:
        """The next position to read; ``None`` for the log start."""
        return self.committed if self.checkpoint is None else self.checkpoint

    @property
    def verdict(self) -> Verdict:
        """The verdict; the module's docstring lists the order of the checks."""
        if self.log is None:
            return "topic gone"
        # The end of a log only grows: a position beyond it belongs to another log.
        if self.recreated or max(self.checkpoint or 0, self.committed or 0) > self.log.end:
            return "topic recreated"
        if not self.is_read:
            return "not read"
        if self.lost:
            return "records lost"
        # ``None`` if unknown. An unknown headroom is judged last, because every other verdict is more
        # specific.
        if expiring := self.headroom is not None and self.headroom.is_below(self.min_headroom):
            return "expiring"
        if self.other_query:
            return "other query"
        if self.checkpoint is None:
            # The first commit of a new partition is at the log start, before any record was read.
            return "group ahead" if (self.committed or 0) > self.log.start else "partition added"
        if self.committed is None:
            return "no commit"
        if self.committed == self.checkpoint:
            return "headroom unknown" if expiring is None else "in step"
        return "group behind" if self.committed < self.checkpoint else "group ahead"

    @property
    def drifted(self) -> bool:
        """Whether the verdict counts as drift."""
        if self.verdict == "not read":
            # If all records are read, dropping the topic loses no record.
            return self.log is None or (self.committed or 0) < self.log.end
        return self.verdict != "in step"

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        position = self.position
        return 0 if self.log is None or position is None else max(0, self.log.start - position)

    @property
    def lag_is_known(self) -> bool:
        """Whether the group's position belongs to this log, or the log is empty."""
        if self.log is None or self.verdict == "topic recreated":
            return False
        # Without a commit the lag depends on where a consumer would start, except in an empty log.
        return self.committed is not None or self.log.end == self.log.start

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON with the same keys for every verdict."""
        headroom = self.headroom.as_json() if self.headroom else UNCOUNTED if self.min_headroom else {}
        return {
            **self.topic_partition._asdict(),
            "checkpoint": self.checkpoint,
            "committed": self.committed,
            "log_start": None if self.log is None else self.log.start,
            "log_end": None if self.log is None else self.log.end,
            "verdict": self.verdict,
            "lost": self.lost if self.verdict == "records lost" else 0,
            **headroom,
        }
