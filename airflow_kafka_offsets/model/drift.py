"""Drift report: a group's commits compared with its checkpoint, partition by partition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.headroom import NO_HEADROOM, Headroom, headrooms_json, reason_lines
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import LONGEST_GRACE, duration_text, parse_duration
from airflow_kafka_offsets.model.partition_state import PartitionState, Verdict, measured_headrooms
from airflow_kafka_offsets.model.table import align_rows, offset_cell
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

LATE: tuple[Verdict, ...] = ("group behind", "no commit")
"""Verdicts that the next commit of the task corrects."""

_CHANGED_BY_MOVES: tuple[Verdict, ...] = ("group behind", "group ahead", "no commit")

REPORT_VERSION = 1


@dataclass(frozen=True)
class NewestBatch:
    """The newest committed batch of a checkpoint; a group is compared with it."""

    location: str
    query_id: str = ""
    batch_id: int | None = None
    """``None`` if no batch has finished."""
    pending_batch_id: int | None = None
    """The batch that is running or was interrupted; it is not compared."""
    ended_at: datetime | None = None
    """When the committed batch ended; ``None`` if unknown."""
    warnings: Sequence[str] = ()
    """Sentences about batches that may have been skipped, or with which Spark fails."""

    def __str__(self) -> str:
        name = "no batch has finished" if self.batch_id is None else f"batch {self.batch_id}"
        pending = "" if self.pending_batch_id is None else f"; batch {self.pending_batch_id} is pending"
        return f"{self.location} ({name}{pending})"


@dataclass(frozen=True)
class DriftReport:
    """
    The drift of one group of one pipeline, partition by partition.

    :param partitions: all partitions of the checkpoint, the group and the broker, in order.
    :param grace: how long after the end of a batch its commit may be missing.
    :param overdue: the partitions without the commit of a batch that ended before the grace time.
    :param made_by: the different origins that the group's commits record.
    :param retention_minutes: how long the broker keeps the offsets of a group without members.
    :param unfinished_move: the checkpoint's move that was started and not finished, if any.
    :param unfinished_recovery: a sentence about a recovery that is neither finished nor undone, if any.
    """

    group_id: str
    batch: NewestBatch
    partitions: tuple[PartitionState, ...]
    checked_at: datetime
    grace: timedelta = timedelta(0)
    overdue: frozenset[TopicPartition] = frozenset()
    made_by: tuple[CommitMetadata, ...] = ()
    retention_minutes: int | None = None
    unfinished_move: str | None = None
    unfinished_recovery: str | None = None

    @property
    def within_grace(self) -> bool:
        """Whether a verdict does not count as drift because the batch has just ended."""
        return any(self._is_within_grace(entry) for entry in self.partitions)

    @cached_property
    def drift(self) -> dict[Verdict, list[PartitionState]]:
        """The partitions of each verdict that counts as drift."""
        found: dict[Verdict, list[PartitionState]] = {}
        for entry in self.partitions:
            # The entry is judged as if the commit had been made: another verdict, such as one about headroom,
            # may then apply, and that verdict counts.
            judged = entry._replace(committed=entry.checkpoint) if self._is_within_grace(entry) else entry
            if judged.drifted:
                found.setdefault(judged.verdict, []).append(entry)
        return found

    @property
    def drifted(self) -> bool:
        """Whether anything counts as drift."""
        return bool(self.drift or self.unfinished_move or self.unfinished_recovery)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """The number of partitions of each verdict that occurs."""
        return Counter(entry.verdict for entry in self.partitions)

    @property
    def lost(self) -> int:
        """Records that retention deleted unread, in the partitions with the verdict ``records lost``."""
        return sum(entry.lost for entry in self.partitions if entry.verdict == "records lost")

    @cached_property
    def headroom(self) -> dict[TopicPartition, Headroom]:
        """The headroom of the partitions for which it was measured."""
        return measured_headrooms(self.partitions)

    @property
    def lag(self) -> Lag:
        """The group's lag, in the topics where it is known for every partition."""
        # Only whole topics: the sum over some partitions would look like the lag of the whole topic.
        unknown = {entry.topic_partition.topic for entry in self.partitions if not entry.lag_is_known}
        known = (entry for entry in self.partitions if entry.topic_partition.topic not in unknown)
        return Lag(self.group_id, tuple(known))

    @property
    def last_commit_age_seconds(self) -> int | None:
        """Age of the group's newest commit; ``None`` if no commit records its time."""
        last_at = max((by.at for by in self.made_by if by.at is not None), default=None)
        if last_at is None:
            return None
        # The commit's time is from another host's clock, which may be ahead.
        return max(0, math.floor(self.checked_at.timestamp()) - last_at)

    @property
    def warnings(self) -> list[str]:
        """Conditions that may become drift."""
        found = [*self.batch.warnings]
        age, kept = self.last_commit_age_seconds, (self.retention_minutes or 0) * 60
        # The warning starts at half of the retention, so that there is time to act.
        if age is None or not kept or 2 * age <= kept:
            return found
        return [
            *found,
            f"the last commit of group {self.group_id!r} is {timedelta(seconds=age)} old, and the broker "
            f"deletes the offsets of a group without members {timedelta(seconds=kept)} after its last "
            "commit: commit again even if no offset changes, or raise offsets.retention.minutes",
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
            parts.append(f"{move}: if it is not running now, run it again or undo it")
        parts += [self.unfinished_recovery] if self.unfinished_recovery else []
        return f"group {self.group_id!r} and {self.batch}: {'; '.join(parts) or 'no drift'}"

    def _detail(self, verdict: Verdict, partitions: Sequence[PartitionState]) -> str:
        found = [entry.headroom for entry in partitions if entry.headroom is not None]
        if verdict == "records lost":
            return f", {plural(self.lost, 'record')}"
        if verdict == "expiring":
            return f", {duration_text(min(each.by_time or 0 for each in found))} left"
        if verdict == "headroom unknown":
            return f", {'; '.join(dict.fromkeys(each.reason for each in found))}"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON with string keys."""
        batch, known, verdicts = self.batch, self.remedies, self.verdicts
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
            "verdicts": dict(verdicts),
            "remedies": {each: known[each] for each in {**verdicts, **self.drift} if each != "in step"},
            "lost": self.lost,
            **(headrooms_json(self.headroom.values()) if self.headroom else {}),
            "last_commit_age_seconds": self.last_commit_age_seconds,
            "offsets_retention_minutes": self.retention_minutes,
            "unfinished_move": self.unfinished_move,
            "unfinished_recovery": self.unfinished_recovery,
            "warnings": self.warnings,
            "partitions": [_row_json(entry) for entry in self.partitions],
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
            lost = f" ({entry.lost})" if entry.verdict == "records lost" else ""
            offsets = (entry.checkpoint, entry.committed, entry.log_start, entry.log_end)
            shown = [offset_cell(at) for at in offsets]
            if self.headroom:
                shown.append("-" if entry.headroom is None else str(entry.headroom))
            rows.append((topic, str(number), *shown, entry.verdict + lost))
        lines = [self.summary(), *(align_rows(rows) if self.partitions else ())]
        if self.within_grace:
            lines += [f"within grace: the batch ended less than {self.grace} ago, its commit may follow"]
        lines += reason_lines(self.headroom)
        return "\n".join([*lines, *self.advice, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def advice(self) -> list[str]:
        """A line for each verdict that counts as drift, with its remedy."""
        return [f"{verdict}: {self.remedies[verdict]}" for verdict in self.drift]

    @property
    def remedies(self) -> Mapping[Verdict, str]:
        """What to do about each verdict; a move that was not finished comes before a commit."""
        if self.unfinished_move is None:
            return remedies()
        first = f"finish or undo move {self.unfinished_move} first, then check again"
        return {**remedies(), **dict.fromkeys(_CHANGED_BY_MOVES, first)}

    def _is_within_grace(self, entry: PartitionState) -> bool:
        ended_at = self.batch.ended_at
        # Clocks differ: a batch may seem to end slightly in the future, but not by an hour.
        just_ended = ended_at is not None and abs(self.checked_at - ended_at) < self.grace
        return just_ended and entry.verdict in LATE and entry.topic_partition not in self.overdue


def reports_json(reports: Iterable[DriftReport]) -> dict[str, Any]:
    """Return the reports of one pipeline as plain JSON: ``version``, ``drifted``, ``groups``."""
    groups = [report.as_json() for report in reports]
    return {"version": REPORT_VERSION, "drifted": any(group["drifted"] for group in groups), "groups": groups}


def _row_json(entry: PartitionState) -> dict[str, Any]:
    """Return plain JSON with the same keys for every verdict."""
    headroom = entry.headroom.as_json() if entry.headroom else NO_HEADROOM if entry.min_headroom else {}
    return {
        **entry.topic_partition._asdict(),
        "checkpoint": entry.checkpoint,
        "committed": entry.committed,
        "log_start": entry.log_start,
        "log_end": entry.log_end,
        "verdict": entry.verdict,
        "lost": entry.lost if entry.verdict == "records lost" else 0,
        **headroom,
    }


def parse_grace(value: object, parameter: str = "grace") -> timedelta:
    """Read ``grace``, a duration of at most :data:`LONGEST_GRACE`; ``None`` means 0."""
    return parse_duration(value, parameter, maximum=LONGEST_GRACE) or timedelta(0)


def remedies() -> Mapping[Verdict, str]:
    """Return what to do about each verdict."""
    left_out = f"left out with {parameter_text('topics', ...)}"
    commit = dag_text("CommitOffsetsOperator", "'airflow-kafka-offsets group commit'")
    reset = dag_text("ResetOffsetsOperator", "'airflow-kafka-offsets group reset'")
    to_group = f"{reset} with {parameter_text('to_offset', 'committed')} moves the checkpoint to the group"
    return {
        "in step": "no action is needed",
        "group behind": (
            "the newest batch was not committed: run the task that commits; if that task has succeeded, find "
            f"out which other task or tool moves the group or the checkpoint. {commit} moves the group to "
            f"the checkpoint; {to_group}, and the query reads the records between them again"
        ),
        "group ahead": (
            "another task or tool moved the group, or the checkpoint is new or an older copy: find out "
            f"which of the two is right. {commit} with {parameter_text('allow_rewind', True)} moves the "
            f"group back to the checkpoint; {to_group}, and the query skips the records between them"
        ),
        "records lost": (
            "retention deleted records before they were read, and Kafka no longer has them: raise the "
            "topic's retention or run the query more often, load the records again from their source, and "
            "move the checkpoint and the group forward: a reset with "
            f"{parameter_text('to_offset', 'committed')} and {parameter_text('on_out_of_range', 'clamp')} "
            "moves these partitions to their log start and leaves the others where they are"
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
            "the topic was deleted and created again, an unclean leader election has cut off its log, or the "
            "connection leads to another cluster: correct the connection, or give the query a new "
            "checkpoint; if the offsets are right there, as with producers whose clocks are ahead or in "
            f"real-time mode, commit once with {parameter_text('allow_new_cluster', True)} to the "
            f"{parameter_text('group_id')} that this pipeline names"
        ),
        "not read": (
            "the query no longer reads the topic, so its new records are not read: let the query read the "
            "topic again; if the query dropped the topic on purpose, delete the group's offsets for it "
            f"({dag_text('left_topics of CommitOffsetsOperator, or ')}airflow-kafka-offsets group "
            f"delete-offsets), use a new group, or leave the topic out with {parameter_text('topics', ...)}"
        ),
        "other query": (
            "the group follows another query: give each query its own group; if this query replaces the "
            f"other one, commit once with {parameter_text('allow_new_query', True)}"
        ),
    }
