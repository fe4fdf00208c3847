"""
Drift of a group: whether it is where its checkpoint is, and both are still in the log.

Every partition gets exactly one verdict, the first of these that holds:

1. ``topic gone``: the broker does not have the partition, so there is nothing to compare with.
2. ``topic recreated``: a position is beyond the log end. Such a position means nothing in this log, and
   neither does its distance to another one.
3. ``records lost``: the position that is read from is below the log start. That is the checkpoint's, since
   Spark never reads the group; the group's only where the checkpoint has none. A group below the log start
   with a checkpoint inside is merely behind.
4. ``expiring``: the position that is read from has less headroom than ``min_headroom``, if that is given.
5. ``group ahead`` of a checkpoint without a position: Spark will read the partition from its start, and the
   group says that it was read further.
6. ``partition added``: the checkpoint has no position, and the group none or the log start.
7. ``no commit``: the checkpoint has a position, the group none.
8. ``group behind`` or ``group ahead``, as the two compare.
9. ``headroom unknown``: ``min_headroom`` is given, and nobody can say whether it holds.
10. ``in step``: the two are equal, and inside the log.

All but ``in step`` are drift. Within grace 7 and ``group behind`` count as they will once it is committed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow_kafka_offsets.model.headroom import UNCOUNTED, Headroom, headrooms_json, unknown_lines
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import LONGEST_GRACE, duration_text, parse_duration
from airflow_kafka_offsets.model.table import align, offset_cell

REPORT_VERSION = 1

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
]

REMEDIES: Mapping[Verdict, str] = {
    "in step": "nothing is to be done",
    "group behind": (
        "the newest batch was not committed: run the task that commits; if it is green, find out who else "
        "moves the group or the checkpoint"
    ),
    "group ahead": (
        "the group was moved by somebody else, or the checkpoint is a new one or an older copy: find out "
        "which of the two is right; committing the checkpoint with allow_rewind=True puts the group back to "
        "it"
    ),
    "records lost": (
        "retention deleted records before they were read, and Kafka no longer has them: raise the topic's "
        "retention or run the query more often, get the records from where they came from, and move the "
        "checkpoint and the group on to the log start"
    ),
    "expiring": (
        "retention soon deletes records that were not read: run the query now, or raise retention.ms of the "
        "topic until it has caught up"
    ),
    "headroom unknown": "remove the reason, or leave min_headroom out for this pipeline and watch its lag",
    "no commit": (
        "run the task that commits; if it has run, Kafka has forgotten the offsets of a group that nobody "
        "joins, or the group was deleted"
    ),
    "partition added": (
        "run the query once: Spark reads a new partition from its start; then commit. A partition that the "
        "query does not read is to be left out with topics="
    ),
    "topic gone": (
        "the connection leads to another cluster, or the topic was deleted: correct the connection, leave "
        "the topic out with topics=, or give the query a new checkpoint"
    ),
    "topic recreated": (
        "the topic was deleted and created again, or the connection leads to another cluster: correct the "
        "connection, or give the query a new checkpoint"
    ),
}
"""What to do about each verdict."""

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

    @property
    def position(self) -> int | None:
        """The position that is read from; ``None``: the log start."""
        return self.committed if self.checkpoint is None else self.checkpoint

    @property
    def verdict(self) -> Verdict:
        """See the module's text for the order in which these are decided."""
        if self.log is None:
            return "topic gone"
        if max(self.checkpoint or 0, self.committed or 0) > self.log.end:
            return "topic recreated"
        if self.lost:
            return "records lost"
        if expiring := self.headroom is not None and self.headroom.below(self.min_headroom):
            return "expiring"
        if self.checkpoint is None:
            return "group ahead" if (self.committed or 0) > self.log.start else "partition added"
        if self.committed is None:
            return "no commit"
        if self.committed == self.checkpoint:
            return "headroom unknown" if expiring is None else "in step"
        return "group behind" if self.committed < self.checkpoint else "group ahead"

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read."""
        position = self.position
        return 0 if self.log is None or position is None else max(0, self.log.start - position)

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


@dataclass(frozen=True)
class NewestBatch:
    """The newest committed batch of a checkpoint, which a group is compared with."""

    location: str
    query_id: str = ""
    batch_id: int | None = None
    """``None`` if no batch has finished."""
    pending_batch_id: int | None = None
    """The batch that is running or was interrupted; it does not count."""
    ended_at: datetime | None = None
    """When the committed batch ended, as far as that is known."""

    def __str__(self) -> str:
        name = "no batch has finished" if self.batch_id is None else f"batch {self.batch_id}"
        pending = "" if self.pending_batch_id is None else f"; batch {self.pending_batch_id} is pending"
        return f"{self.location} ({name}{pending})"


@dataclass(frozen=True)
class DriftReport:
    """
    One group of one pipeline, partition by partition.

    :param partitions: all that the checkpoint, the group or the broker has, in order.
    :param grace: how long after its end a batch need not have been committed.
    :param last_commit_at: seconds since 1970 of the group's newest commit that says when it was made.
    :param retention_minutes: how long the broker keeps the offsets of a group that nobody joins.
    :param unfinished_move: the checkpoint's move that was begun and not finished, if there is one.
    :param unfinished_recovery: says which recovery is neither finished nor taken back, if there is one.
    """

    group_id: str
    batch: NewestBatch
    partitions: tuple[PartitionDrift, ...]
    checked_at: datetime
    grace: timedelta = timedelta(0)
    last_commit_at: int | None = None
    retention_minutes: int | None = None
    unfinished_move: str | None = None
    unfinished_recovery: str | None = None

    @property
    def by_verdict(self) -> dict[Verdict, list[PartitionDrift]]:
        """The partitions of each verdict that occurs."""
        found: dict[Verdict, list[PartitionDrift]] = {}
        for partition in self.partitions:
            found.setdefault(partition.verdict, []).append(partition)
        return found

    @property
    def within_grace(self) -> bool:
        """Whether something is not counted as drift because the batch has just ended."""
        return self._just_ended and any(verdict in self.by_verdict for verdict in PASSING)

    @property
    def drift(self) -> dict[Verdict, list[PartitionDrift]]:
        """The partitions of each verdict that counts as drift."""
        found: dict[Verdict, list[PartitionDrift]] = {}
        for entry in self.partitions:
            passing = self._just_ended and entry.verdict in PASSING
            verdict = replace(entry, committed=entry.checkpoint).verdict if passing else entry.verdict
            if verdict != "in step":
                found.setdefault(verdict, []).append(entry)
        return found

    @property
    def drifted(self) -> bool:
        """Whether anything counts as drift."""
        return bool(self.drift or self.unfinished_move or self.unfinished_recovery)

    @property
    def lost(self) -> int:
        """Records that retention deleted before they were read, in all partitions of the verdict."""
        return sum(partition.lost for partition in self.by_verdict.get("records lost", ()))

    @property
    def headroom(self) -> dict[TopicPartition, Headroom]:
        """The headroom of the partitions where it was asked for."""
        return {
            entry.topic_partition: entry.headroom for entry in self.partitions if entry.headroom is not None
        }

    @property
    def last_commit_age_seconds(self) -> int | None:
        """Age of the group's newest commit; ``None`` if none of its commits says when it was made."""
        if self.last_commit_at is None:
            return None
        return max(0, math.floor(self.checked_at.timestamp()) - self.last_commit_at)

    @property
    def warnings(self) -> list[str]:
        """What is no drift yet."""
        age, kept = self.last_commit_age_seconds, (self.retention_minutes or 0) * 60
        if age is None or not kept or 2 * age <= kept:
            return []
        return [
            f"the last commit of group {self.group_id!r} is {timedelta(seconds=age)} old, and the broker "
            f"forgets the offsets of a group that nobody joins {timedelta(seconds=kept)} after its last "
            "commit: commit again, also when nothing moves, or raise offsets.retention.minutes"
        ]

    def summary(self) -> str:
        """Return one line that names the group, the verdicts that count, and their first partitions."""
        parts = []
        for verdict, partitions in self.drift.items():
            named = summarize((partition.topic_partition for partition in partitions), limit=3)
            parts.append(
                f"{verdict} on {len(partitions)} of {len(self.partitions)} partitions "
                f"({named}{self._detail(verdict, partitions)})"
            )
        if self.unfinished_move is not None:
            move = f"move {self.unfinished_move} of the checkpoint was begun and not finished"
            parts.append(f"{move}: it is under way, or is to be run again or taken back")
        parts += [self.unfinished_recovery] if self.unfinished_recovery else []
        return f"group {self.group_id!r} and {self.batch}: {'; '.join(parts) or 'no drift'}"

    def _detail(self, verdict: Verdict, partitions: Sequence[PartitionDrift]) -> str:
        found = [entry.headroom for entry in partitions if entry.headroom is not None]
        if verdict == "records lost":
            return f", {self.lost} records"
        if verdict == "expiring":
            return f", {duration_text(min(each.by_time or 0 for each in found))} left"
        if verdict == "headroom unknown":
            return f", {'; '.join(dict.fromkeys(each.reason for each in found))}"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON with string keys."""
        batch = self.batch
        return {
            "version": REPORT_VERSION,
            "group_id": self.group_id,
            "checkpoint": batch.location,
            "query_id": batch.query_id,
            "batch_id": batch.batch_id,
            "pending_batch_id": batch.pending_batch_id,
            "batch_ended_at": None if batch.ended_at is None else batch.ended_at.isoformat(),
            "checked_at": self.checked_at.isoformat(),
            "drifted": self.drifted,
            "within_grace": self.within_grace,
            "verdicts": dict(Counter(partition.verdict for partition in self.partitions)),
            "remedies": {each: REMEDIES[each] for each in self.by_verdict | self.drift if each != "in step"},
            "lost": self.lost,
            **(headrooms_json(self.headroom.values()) if self.headroom else {}),
            "last_commit_age_seconds": self.last_commit_age_seconds,
            "offsets_retention_minutes": self.retention_minutes,
            "unfinished_move": self.unfinished_move,
            "unfinished_recovery": self.unfinished_recovery,
            "warnings": self.warnings,
            "partitions": [partition.as_json() for partition in self.partitions],
        }

    def table(self) -> str:
        """Return the report as lines for a log: a line per partition, and what to do about each verdict."""
        rows: list[tuple[str, ...]] = [
            (
                *("TOPIC", "PARTITION", "CHECKPOINT", "GROUP", "LOG-START", "LOG-END"),
                *(("HEADROOM",) if self.headroom else ()),
                "VERDICT",
            )
        ]
        for entry in self.partitions:
            topic, number = entry.topic_partition
            ends: tuple[int | None, int | None] = entry.log or (None, None)
            lost = f" ({entry.lost})" if entry.verdict == "records lost" else ""
            shown = [offset_cell(at) for at in (entry.checkpoint, entry.committed, *ends)]
            if self.headroom:
                shown.append("-" if entry.headroom is None else str(entry.headroom))
            rows.append((topic, str(number), *shown, entry.verdict + lost))
        lines = [self.summary(), *(align(rows) if self.partitions else ())]
        if self.within_grace:
            lines += [f"within grace: the batch ended less than {self.grace} ago, its commit may still come"]
        lines += unknown_lines(self.headroom)
        lines += [f"{verdict}: {REMEDIES[verdict]}" for verdict in self.drift]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def _just_ended(self) -> bool:
        # Clocks differ: a batch may seem to have ended in a moment, but not in an hour.
        return self.batch.ended_at is not None and abs(self.checked_at - self.batch.ended_at) < self.grace


def reports_json(reports: Iterable[DriftReport]) -> dict[str, Any]:
    """Return the reports of one pipeline as plain JSON: ``version``, ``drifted``, ``groups``."""
    groups = [report.as_json() for report in reports]
    return {"version": REPORT_VERSION, "drifted": any(group["drifted"] for group in groups), "groups": groups}


def parse_grace(value: object, parameter: str = "grace") -> timedelta:
    """Read ``grace``, a duration of at most :data:`LONGEST_GRACE`; none means 0."""
    return parse_duration(value, parameter, most=LONGEST_GRACE) or timedelta(0)
