"""
Offset windows: the records that one run reads, and the commit of their end.

An *offset window* is a half-open range of offsets for each partition. It is planned once, before the job
reads, and never changes. The job reads exactly these records, however often it runs. A group moves to the
window's end only from the window's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, WindowMismatchError
from airflow_kafka_offsets.model.commit_origins import committer_text
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import (
    load_json,
    offsets_json,
    offsets_text,
    parse_offsets,
    parse_positions,
)
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    Commits,
    Logs,
    OffsetRange,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.text import DescribeValue, plural, shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

# The promises of "version", here and in receipts and reports, are in docs/reference/stability.md.
WINDOW_VERSION = 1
WINDOW_CONF_KEY = "spark.kafkaOffsets.window"
"""The Spark setting with the window of the job's DAG: the window's JSON, or the URI of a file with it."""


def check_bounds(start: Place, end: Place, now: datetime | None = None) -> None:
    """Refuse a window without length, that ends before it starts, or that ends after ``now``."""
    begins, ends = start.time, end.time
    refusals = []
    # Said first, with Airflow's reason: a daily DAG of Airflow 2 meets it with its first run on Airflow 3.
    if begins is not None and begins == ends:
        remedy = dag_text(
            "in Airflow 3 a plain cron string gives data intervals of no length; set "
            "schedule=CronDataIntervalTimetable('0 0 * * *', timezone='UTC') (from "
            "airflow.timetables.interval), or "
        )
        refusals.append(
            f"{parameter_text('start')} and {parameter_text('end')} are both {begins.isoformat()}, a window "
            f"without length: {remedy}give other times"
        )
    if begins is not None and ends is not None and begins > ends:
        refusals.append(
            f"{parameter_text('start', begins.isoformat())} is after "
            f"{parameter_text('end', ends.isoformat())}: exchange them, or give other times"
        )
    bounds = (("start", begins), ("end", ends))
    if now and (late := [parameter_text(name, at.isoformat()) for name, at in bounds if at and at > now]):
        refusals.append(
            f"{' and '.join(late)} is in the future (it is {now.isoformat(timespec='seconds')}): records of "
            "the window may still come; plan it when the time has passed, or with "
            f"{parameter_text('end', 'latest')}"
        )
    if (
        start.offsets is not None
        and end.offsets is not None
        and (odd := start.offsets.keys() ^ end.offsets.keys())
    ):
        refusals.append(
            f"start and end name different partitions, {summarize(odd)} is only in one of the two: name the "
            "same in both"
        )
    PlanRefusedError.raise_if(refusals)


@dataclass(frozen=True)
class OffsetWindow:
    """
    A half-open range of offsets for each partition.

    :param without_commit: partitions in which the group had no commit when the window was planned. Their
        ranges may be committed only while the group still has no commit there.
    :param source: the task that planned the window and its parameters, as plain JSON.
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    without_commit: frozenset[TopicPartition] = frozenset()
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> Offsets:
        """The first offset of each partition."""
        return {tp: self.ranges[tp].start for tp in sorted(self.ranges)}

    @property
    def end(self) -> Offsets:
        """The offset after the last one of each partition; these offsets are committed."""
        return {tp: self.ranges[tp].end for tp in sorted(self.ranges)}

    @property
    def committed(self) -> Positions:
        """The positions that the group must have when the window is committed; ``None`` means no commit."""
        return {tp: None if tp in self.without_commit else offset for tp, offset in self.start.items()}

    @property
    def records(self) -> int:
        """Number of offsets in the window; with transactions or compaction the window has fewer records."""
        return sum(offsets.size for offsets in self.ranges.values())

    @property
    def log_ids(self) -> LogIds:
        """Ids of the cluster and the topics when the window was planned, as far as they were recorded."""
        recorded = LogIds.parse(self.source.get("logs"), "window, source, logs")
        return recorded.restricted_to(tp.topic for tp in self.ranges)

    @property
    def digest(self) -> str:
        """Fingerprint of the ranges and of the positions that a commit requires."""
        return digest(
            offsets_json(self.start), offsets_json(self.end), offsets_json(self.committed), length=12
        )

    def __bool__(self) -> bool:
        """Whether the window has any offset to read."""
        return self.records > 0

    def limited(self, max_records: int) -> OffsetWindow:
        """
        Return the window limited to ``max_records``, shared over the partitions in proportion to their size.

        This is the rule of Spark's ``maxOffsetsPerTrigger`` (``KafkaMicroBatchStream.rateLimit``), except for
        rounding: the remainder goes to the partitions that rounding reduces most. So the window is never
        larger than the limit, and never empty while records are left.
        """
        total = self.records
        if total <= max_records:
            return self
        shares = {tp: divmod(offsets.size * max_records, total) for tp, offsets in self.ranges.items()}
        left = max_records - sum(share for share, _ in shares.values())
        # Equal remainders are ordered by name, so that planning again gives the same window.
        rounded = sorted(shares, key=lambda tp: (-shares[tp][1], tp))[:left]
        ranges = {
            tp: OffsetRange(offsets.start, offsets.start + shares[tp][0] + (tp in rounded))
            for tp, offsets in self.ranges.items()
        }
        return replace(self, ranges=ranges)

    def refusals(self, logs: Logs) -> list[str]:
        """Return why the window cannot be read: records are deleted, or its end is beyond the log end."""
        refusals = []
        lost = {
            tp: min(logs[tp].start, offsets.end) - offsets.start
            for tp, offsets in sorted(self.ranges.items())
            if offsets.start < offsets.end and logs[tp].start > offsets.start
        }
        # With fewer records than planned, the job's output would have a gap without any error.
        if lost:
            first = next(iter(lost))
            refusals.append(
                f"retention has deleted {plural(sum(lost.values()), 'record')} of the window on "
                f"{summarize(lost)} ({first}: the window starts at {self.ranges[first].start}, the log at "
                f"{logs[first].start}); to continue with the remaining records, move the group to them with "
                "ResetOffsetsOperator, or plan a window that starts later"
            )
        return refusals + self.end_refusals(logs)

    def end_refusals(self, logs: Logs) -> list[str]:
        """Return why the window's end cannot be committed: it is beyond the log end."""
        beyond = [tp for tp, offsets in sorted(self.ranges.items()) if offsets.end > logs[tp].end]
        if not beyond:
            return []
        first = beyond[0]
        return [
            f"the window ends beyond the log on {summarize(beyond)} ({first}: the window ends at "
            f"{self.ranges[first].end}, the log at {logs[first].end}): the topic was recreated, an unclean "
            "leader election has cut off its log, or the connection leads to another cluster"
        ]

    def to_commit(self, where: str, commits: Commits) -> Offsets:
        """
        Return the offsets that remain to be committed, without partitions that are already at the window's
        end.

        :param where: the owner of the commits, such as ``group 'orders'``, for the error text.
        :param commits: the group's commits, at least for the window's partitions.
        :raises WindowMismatchError: if a partition is neither at the window's start nor at its end.
        """
        expected, end, positions = self.committed, self.end, committed_offsets(commits)
        if elsewhere := [tp for tp in end if positions[tp] not in (end[tp], expected[tp])]:
            movers = {tp: who for tp in elsewhere if (who := committer_text(commits[tp]))}
            raise WindowMismatchError(
                where, {tp: (positions[tp], expected[tp], end[tp]) for tp in elsewhere}, movers
            )
        # After an interrupted commit some partitions are already at the end; a retry commits the others.
        return {tp: offset for tp, offset in end.items() if positions[tp] != offset}

    def passed(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Whether the group has reached or passed the window's end in every partition."""
        return all((at := positions[tp]) is not None and at >= end for tp, end in self.end.items())

    def only(self, partitions: Iterable[TopicPartition]) -> OffsetWindow:
        """Return the window limited to some partitions."""
        kept = self.ranges.keys() & set(partitions)
        ranges = {tp: self.ranges[tp] for tp in sorted(kept)}
        return replace(self, ranges=ranges, without_commit=self.without_commit & kept)

    def spark_options(self) -> dict[str, str]:
        """
        Return the options with which Spark's Kafka source reads exactly this window in a batch.

        They use ``assign``, because with ``subscribe`` a partition that was added later makes the read fail.
        """
        return {
            "assign": json.dumps(TopicScope.exactly(self.ranges).as_json(), separators=(",", ":")),
            "startingOffsets": offsets_text(self.start),
            "endingOffsets": offsets_text(self.end),
        }

    def as_json(self) -> dict[str, Any]:
        """
        Return plain JSON with string keys.

        ``version``, ``start``, ``end`` and ``committed`` (each ``{topic: {partition: offset}}``), ``counts``
        (the same form) and ``records``, their sum, ``spark_options`` and ``source``.
        """
        return {
            "version": WINDOW_VERSION,
            "start": offsets_json(self.start),
            "end": offsets_json(self.end),
            "committed": offsets_json(self.committed),
            "counts": offsets_json({tp: offsets.size for tp, offsets in self.ranges.items()}),
            "records": self.records,
            "spark_options": self.spark_options(),
            "source": dict(self.source),
        }

    def as_text(self) -> str:
        """Return compact JSON text without derived fields, for a command-line argument."""
        form = self.as_json()
        parts = ("version", "start", "end", "committed", "source")
        return json.dumps({name: form[name] for name in parts}, separators=(",", ":"))

    @classmethod
    def parse(cls, value: object, what: str = "window", *, show: DescribeValue = shorten) -> OffsetWindow:
        """
        Read the result of :meth:`as_json`, as a mapping or as JSON text.

        :param show: describes the value in an error text; see
            :func:`~airflow_kafka_offsets.model.text.describe_type`.
        :raises OffsetsFormatError: if the value is not a window, has another version, or a range is reversed.
        """
        if isinstance(value, str):
            value = load_json(value, what, describe=show)
        if not isinstance(value, Mapping) or value.get("version") != WINDOW_VERSION:
            raise OffsetsFormatError(
                f"{what}: found {show(value)}; expected a window of version {WINDOW_VERSION}, as "
                "PlanOffsetWindowOperator returns it"
            )
        start = parse_offsets(value.get("start"), f"{what}, start", describe=show)
        end = parse_offsets(value.get("end"), f"{what}, end", describe=show)
        committed = parse_positions(value.get("committed"), f"{what}, committed", describe=show)
        if not start.keys() == end.keys() == committed.keys():
            odd = (start.keys() ^ end.keys()) | (start.keys() ^ committed.keys())
            raise OffsetsFormatError(
                f"{what}: {summarize(odd)} is not in all of start, end and committed; expected the same "
                "partitions"
            )
        for tp in sorted(start):
            if start[tp] > end[tp] or committed[tp] not in (None, start[tp]):
                raise OffsetsFormatError(
                    f"{what}: found start {start[tp]}, end {end[tp]} and committed {committed[tp]} of {tp}; "
                    "expected an end that is not before the start, and the start or null as committed"
                )
        source = value.get("source") or {}
        if not isinstance(source, Mapping):
            raise OffsetsFormatError(f"{what}: found {show(source)}; expected the window's source")
        return cls(
            {tp: OffsetRange(start[tp], end[tp]) for tp in sorted(start)},
            frozenset(tp for tp, offset in committed.items() if offset is None),
            dict(source),
        )
