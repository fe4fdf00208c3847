"""
The verdict on a partition: whether a group is where its checkpoint is, and both are still in the log.

Every partition gets exactly one verdict, the first of these that holds:

1. ``topic gone``: the broker does not have the partition, so there is nothing to compare with.
2. ``topic recreated``: the positions were counted in another log. The topic's id is another one than a
   commit, or a move of the checkpoint, has recorded; or a record that the batch has read is newer than the
   batch; or a position is beyond the log end. Its distance to another position means nothing then.
3. ``not read``: the query does not read the topic, and the group has commits on it.
4. ``records lost``: the position that is read from is below the log start. That is the checkpoint's, since
   Spark never reads the group; the group's only where the checkpoint has none. A group below the log start
   with a checkpoint inside is merely behind.
5. ``expiring``: the position that is read from has less headroom than ``min_headroom``, if that is given.
6. ``other query``: the group's last commit is of another query, so that the two are not to be compared.
7. ``group ahead`` of a checkpoint without a position: Spark will read the partition from its start, and the
   group says that it was read further.
8. ``partition added``: the checkpoint has no position, and the group none or the log start.
9. ``no commit``: the checkpoint has a position, the group none.
10. ``group behind`` or ``group ahead``, as the two compare.
11. ``headroom unknown``: ``min_headroom`` is given, and nobody can say whether it holds.
12. ``in step``: the two are equal, and inside the log.

All but ``in step`` are drift, and ``not read`` where no record waits after the group's commit. Within grace 9
and ``group behind`` count as they will once it is committed.
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
    return {
        "in step": "nothing is to be done",
        "group behind": (
            "the newest batch was not committed: run the task that commits; if it is green, find out who "
            "else moves the group or the checkpoint"
        ),
        "group ahead": (
            "the group was moved by somebody else, or the checkpoint is a new one or an older copy: find out "
            "which of the two is right; committing the checkpoint with "
            f"{parameter_text('allow_rewind', True)} puts the group back to it"
        ),
        "records lost": (
            "retention deleted records before they were read, and Kafka no longer has them: raise the "
            "topic's retention or run the query more often, get the records from where they came from, and "
            "move the checkpoint and the group on: a reset to committed with "
            f"{parameter_text('on_out_of_range', 'clamp')} moves these partitions to their log start and "
            "leaves the others where they are"
        ),
        "expiring": (
            "retention soon deletes records that were not read: run the query now, or raise retention.ms of "
            "the topic until it has caught up"
        ),
        "headroom unknown": (
            f"remove the reason, or leave {parameter_text('min_headroom')} out for this pipeline and watch "
            "its lag"
        ),
        "no commit": (
            "run the task that commits; if it has run, Kafka has forgotten the offsets of a group that "
            "nobody joins, or the group was deleted; a topic that the task leaves out is to be "
            f"{left_out} here too"
        ),
        "partition added": (
            "run the query once: Spark reads a new partition from its start; then commit. A partition that "
            f"the query does not read is to be {left_out}"
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
            "the query no longer reads the topic, and nobody reads what is written to it: let the query read "
            "it again; if that is not meant, delete the group's offsets of it "
            f"({dag_text('left_topics of CommitOffsetsOperator, or ')}airflow-kafka-offsets group "
            "delete-offsets), use a new group, or leave the topic out with "
            f"{parameter_text('topics', ...)}"
        ),
        "other query": (
            "the group follows another query: give each query a group of its own; if this one took the "
            f"other's place, commit once with {parameter_text('allow_new_query', True)}"
        ),
    }


PASSING: tuple[Verdict, ...] = ("group behind", "no commit")
"""What the next run of the task that commits puts right by itself."""


@dataclass(frozen=True)
class PartitionDrift:
    """One partition: where checkpoint and group are in its log."""

    topic_partition: TopicPartition
    checkpoint: int | None
    """The checkpoint's position, ``None`` if its newest batch does not have the partition."""
    committed: int | None
    """The group's position, ``None`` without a commit."""
    log: LogRange | None
    """What the log holds, ``None`` if the broker does not have the partition."""
    headroom: Headroom | None = None
    """That of the position that is read from; ``None`` if it was not asked for."""
    min_headroom: float = 0.0
    """Seconds that the headroom should be."""
    recreated: bool = False
    """Whether the positions are known to be of another log."""
    read: bool = True
    """Whether the query reads the topic."""
    other_query: bool = False
    """Whether the group's last commit is of another query."""

    @property
    def position(self) -> int | None:
        """The position that is read from; ``None``: the log start."""
        return self.committed if self.checkpoint is None else self.checkpoint

    @property
    def verdict(self) -> Verdict:
        """See the module's text for the order in which these are decided."""
        if self.log is None:
            return "topic gone"
        # Log ends only grow within one log: a position beyond it was counted in another one.
        if self.recreated or max(self.checkpoint or 0, self.committed or 0) > self.log.end:
            return "topic recreated"
        if not self.read:
            return "not read"
        if self.lost:
            return "records lost"
        # None where nobody knows: that is judged last, since every verdict before it has more to say.
        if expiring := self.headroom is not None and self.headroom.is_below(self.min_headroom):
            return "expiring"
        if self.other_query:
            return "other query"
        if self.checkpoint is None:
            # A commit at the log start is what committing a new partition's start leaves: nothing was read
            # yet.
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
            # Everything that was written is read: dropping the topic lost nothing.
            return self.log is None or (self.committed or 0) < self.log.end
        return self.verdict != "in step"

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        position = self.position
        return 0 if self.log is None or position is None else max(0, self.log.start - position)

    @property
    def lag_is_known(self) -> bool:
        """Whether the group's position is in this log, or there is nothing to read."""
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
