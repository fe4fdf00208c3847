"""
State of a partition: where the group and the checkpoint are in its log, and what follows from that.

Every partition that is compared gets exactly one verdict, the first of these that applies:

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

from collections.abc import Iterable
from typing import Literal, NamedTuple

from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, TopicPartition

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


class PartitionState(NamedTuple):
    """The positions in the log of one partition, as they were read."""

    topic_partition: TopicPartition
    committed: int | None
    """The offset of the group's next record; ``None`` without a commit."""
    log: LogRange | None
    """The start and the end of the log; ``None`` if the broker does not have the partition."""
    start: int | None = None
    """Where a group without a commit starts to read; ``None`` if that is not defined."""
    checkpoint: int | None = None
    """The checkpoint's position; ``None`` if its newest batch does not have the partition."""
    time_lag: float | None = 0.0
    """Age in seconds of the first unread record if it is late, else 0; ``None`` if the age is unknown."""
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
        """The next position to read, the checkpoint's if there is one: Spark ignores the group."""
        position = self.committed if self.checkpoint is None else self.checkpoint
        return self.start if position is None else position

    @property
    def log_start(self) -> int | None:
        """The start of the log, if there is one."""
        return None if self.log is None else self.log.start

    @property
    def log_end(self) -> int | None:
        """The end of the log, if there is one."""
        return None if self.log is None else self.log.end

    @property
    def lag(self) -> int | None:
        """
        Records from the group's position, or :attr:`position`, to the log end.

        ``None`` without a position in this log.
        """
        position = self.position if self.committed is None else self.committed
        if position is None or self.log is None or self.is_of_other_log:
            return None
        return self.log.lag(position)

    @property
    def is_of_other_log(self) -> bool:
        """Whether a position belongs to another log. The end of a log only grows."""
        if self.log is None:
            return False
        return self.recreated or max(self.checkpoint or 0, self.committed or 0) > self.log.end

    @property
    def uncounted(self) -> int:
        """Records in the log of a partition whose lag is not counted; a job may still read them."""
        return 0 if self.log is None or self.lag is not None else self.log.lag(self.log.start)

    @property
    def first_unread(self) -> int | None:
        """The offset that the lag begins at; ``None`` without lag."""
        return self.log.end - lag if self.log is not None and (lag := self.lag) else None

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        position = self.position
        return 0 if self.log is None or position is None else self.log.lost(position)

    @property
    def is_late(self) -> bool:
        """Whether the first unread record is older than allowed, or may be."""
        return self.time_lag != 0

    @property
    def is_expiring(self) -> bool | None:
        """Whether the headroom is below the required one, if there is one; ``None`` if it is unknown."""
        least = self.min_headroom
        return least > 0 and self.headroom is not None and self.headroom.is_below(least)

    @property
    def verdict(self) -> Verdict:
        """The verdict; the module's docstring lists the order of the checks."""
        if self.log is None:
            return "topic gone"
        if self.is_of_other_log:
            return "topic recreated"
        if not self.is_read:
            return "not read"
        if self.lost:
            return "records lost"
        if self.is_expiring:
            return "expiring"
        if self.other_query:
            return "other query"
        if self.checkpoint is None:
            # The first commit of a new partition is at the log start, before any record was read.
            return "group ahead" if (self.committed or 0) > self.log.start else "partition added"
        if self.committed is None:
            return "no commit"
        if self.committed == self.checkpoint:
            # An unknown headroom is judged last, because every other verdict is more specific.
            return "headroom unknown" if self.is_expiring is None else "in step"
        return "group behind" if self.committed < self.checkpoint else "group ahead"

    @property
    def drifted(self) -> bool:
        """Whether the verdict counts as drift."""
        if self.verdict == "not read":
            # If all records are read, dropping the topic loses no record.
            return self.log is None or (self.committed or 0) < self.log.end
        return self.verdict != "in step"

    @property
    def lag_is_known(self) -> bool:
        """Whether the group's position belongs to this log, or the log is empty."""
        if self.log is None or self.is_of_other_log:
            return False
        # Without a commit the lag depends on where a consumer would start, except in an empty log.
        return self.committed is not None or self.log.end == self.log.start


def offsets_to_read(partitions: Iterable[PartitionState]) -> Offsets:
    """Return the next offset to read in each log: the log start without a position in this log."""
    return {
        each.topic_partition: each.log.start
        if each.position is None or each.is_of_other_log
        else each.position
        for each in partitions
        if each.log is not None
    }


def measured_headrooms(partitions: Iterable[PartitionState]) -> dict[TopicPartition, Headroom]:
    """Return the headroom of the partitions for which it was measured."""
    return {each.topic_partition: each.headroom for each in partitions if each.headroom is not None}
