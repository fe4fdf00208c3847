"""Reads the current position of a pipeline: its checkpoint, its groups and the logs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    DriftError,
    KafkaOffsetsError,
)
from airflow_kafka_offsets.kafka.explain import remedy_for
from airflow_kafka_offsets.kafka.failures import DENIED
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import partitions_digest
from airflow_kafka_offsets.model.drift import DriftReport, NewestBatch, remedies
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.headroom import (
    Headroom,
    headrooms_json,
    measure_headrooms,
    positions_needing_time,
)
from airflow_kafka_offsets.model.offsets import (
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.partition_state import PartitionState, offsets_to_read
from airflow_kafka_offsets.model.table import to_columns
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.readings.drift import newest_batch, pipeline_drift
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids, recreated_partitions
from airflow_kafka_offsets.readings.positions import (
    check_in_log,
    group_commits,
    partitions_in_scope,
    refuse_missing_partitions,
)
from airflow_kafka_offsets.readings.retention import read_retentions
from airflow_kafka_offsets.ui.provenance import makers_of

_TIMES_WITHIN = 1.5
"""Seconds for reading the times of the oldest unread records; after them the other times are unknown."""

MOVE_UNFINISHED = "move unfinished"
_FINISH = "if the move is under way, wait until it ends; else run the same move again, or take it back"
WORST_FIRST: tuple[str, ...] = (
    MOVE_UNFINISHED,
    "records lost",
    "topic recreated",
    "topic gone",
    "not read",
    "expiring",
    "other query",
    "group ahead",
    "no commit",
    "partition added",
    "group behind",
    "headroom unknown",
)
"""Verdicts in order of severity; the verdict of several groups is the first of these that occurs."""

_COLUMNS = (
    *("group", "topic", "partition", "committed", "checkpoint", "log_start", "log_end"),
    *("lag", "time_lag", "headroom", "headroom_state", "verdict"),
)

# Number of topics that fit on the page.
_MOST_TOPICS = 50

_RESERVE = 0.5
"""Seconds that the rest of the reading needs."""


@dataclass
class PipelineNow:
    """One reading of a pipeline, which ends in time for ``end`` by ``time.monotonic()``."""

    client: OffsetsClient
    selection: GroupSelection
    checkpoint: SparkCheckpoint | None
    end: float
    problems: list[str] = field(default_factory=list)
    """A sentence for each value that could not be read."""

    def read(self) -> dict[str, Any]:
        """
        Return the reading as plain JSON: durations in seconds, ``partitions`` as columns.

        A value that cannot be read is ``None``, and ``problems`` has a sentence about it. In the totals,
        ``unknown_lag`` is the number of partitions without a position or a log, which ``lag`` leaves out, and
        ``uncounted`` the number of records in their logs, which a job may still read.

        :raises KafkaOffsetsError: if the positions cannot be read.
        """
        reports = [self._with_times(report) for report in self._reports()]
        compared = self.checkpoint is not None and bool(self.selection.group_ids)
        lines = [
            _line(report.group_id or None, row, compared=compared)
            for report in reports
            for row in report.partitions
        ]
        rows = [row for report in reports for row in report.partitions]
        verdicts = _verdicts(reports) if compared else []
        totals = _totals(rows, of_groups=bool(self.selection.group_ids))
        state, members = self._members(self.selection.group_ids and [report.group_id for report in reports])
        return {
            "totals": totals,
            "state": state,
            "members": members,
            # Before its first finished batch, a group without commits has nothing to compare.
            "drift": _drift(reports) if verdicts or (compared and rows) else None,
            "remedies": _remedies(reports, verdicts, totals),
            "checkpoint": _batch(reports[0].batch) if self.checkpoint is not None and reports else None,
            "commits": makers_of(reports),
            "topics": sorted({row.topic_partition.topic for row in rows})[:_MOST_TOPICS],
            "partitions": to_columns(lines, _COLUMNS),
            "problems": list(dict.fromkeys(self.problems)),
        }

    def _reports(self) -> list[DriftReport]:
        if self.checkpoint is None:
            return [self._group_report(*each) for each in self.selection.scopes().items()]
        if self.selection.group_ids:
            return pipeline_drift(self.client, self.checkpoint, self.selection, ask_retention=False)
        return self._source_reports(self.checkpoint)

    def _group_report(self, group_id: str, scope: TopicScope) -> DriftReport:
        commits = group_commits(self.client, group_id, scope)
        positions, made = committed_offsets(commits), map(CommitMetadata.of, commits.values())
        logs = self.client.log_ranges(positions)
        self._note_other_log(group_id, positions, logs)
        rows = tuple(PartitionState(tp, at, logs[tp]) for tp, at in sorted(positions.items()))
        made_by = tuple(dict.fromkeys(filter(None, made)))
        return DriftReport(group_id, NewestBatch(""), rows, datetime.now(tz=timezone.utc), made_by=made_by)

    def _source_reports(self, checkpoint: SparkCheckpoint) -> list[DriftReport]:
        state, moves = checkpoint.read(), ArchivedMoves(checkpoint)
        batch = newest_batch(checkpoint, state)
        sources = state.kafka_offsets or {"": {}}
        reports = []
        for source, offsets in sources.items():
            # Two sources of a query may read the same partition, so each has a name in place of a group's.
            name = f"source:{source}" if len(sources) > 1 else ""
            rows = self._source_rows(moves, state, offsets)
            reports.append(DriftReport(name, batch, rows, datetime.now(tz=timezone.utc)))
        return reports

    def _source_rows(
        self, moves: ArchivedMoves, state: CheckpointState, offsets: Offsets
    ) -> tuple[PartitionState, ...]:
        scope = self.selection.scope.restricted_to(tp.topic for tp in offsets)
        if not scope.topics:
            return ()
        read = {tp: at for tp, at in offsets.items() if tp in scope}
        partitions = partitions_in_scope(self.client, scope)
        refuse_missing_partitions(self.client, read)
        now = known_log_ids(self.client, scope.topics)
        DriftError.raise_if(LogCheck(moves=moves).refusals(now))
        logs = self.client.log_ranges(partitions)
        self._note_other_log("the checkpoint", {**read}, logs)
        again = recreated_partitions(self.client, moves, state, read, {}, now, whole_logs_only=True)
        if again:
            self.problems.append(f"{summarize(again)}: {remedies()['topic recreated']}")
        return tuple(
            PartitionState(tp, None, logs[tp], checkpoint=read.get(tp), recreated=tp in again)
            for tp in sorted(partitions)
        )

    def _note_other_log(self, name: str, positions: Positions, logs: Logs) -> None:
        try:
            check_in_log(self.client, name, positions, logs)
        except DriftError as error:
            self.problems.append(str(error))

    def _with_times(self, report: DriftReport) -> DriftReport:
        """Add the age of the oldest unread record, and the headroom, to each partition."""
        rows = report.partitions
        logs = {row.topic_partition: row.log for row in rows if row.log is not None}
        # The lag is the group's. The headroom is that of the records that Spark has not read.
        behind = {row.topic_partition: at for row in rows if (at := row.first_unread) is not None}
        unread = offsets_to_read(rows)
        # Not the whole error, which may have the addresses that brokers advertise.
        explain = partial(error_text, servers=self.client.servers)
        known = read_retentions(self.client, {tp.topic for tp in unread}, explain=explain)
        for topic, found in known.items():
            if isinstance(found, str):
                self.problems.append(f"the retention of topic {topic} is not known: {found}")
        times = self._record_times(behind)
        more = {
            tp: at for tp, at in positions_needing_time(unread, logs, known).items() if behind.get(tp) != at
        }
        of_unread = {tp: at for tp, at in times.items() if tp not in more} | self._record_times(more)
        now = time.time()
        ages = {tp: max(0.0, now - at / 1000) for tp, at in times.items() if at is not None and at >= 0}
        headrooms = measure_headrooms(unread, logs, known, of_unread, int(now * 1000))
        timed = (
            row._replace(
                time_lag=0.0 if row.lag == 0 else ages.get(row.topic_partition),
                headroom=headrooms.get(row.topic_partition),
            )
            for row in rows
        )
        return replace(report, partitions=tuple(timed))

    def _record_times(self, offsets: Offsets) -> dict[TopicPartition, int | None]:
        within = min(_TIMES_WITHIN, self.end - time.monotonic() - _RESERVE)
        if not offsets or within <= 0:
            return {}
        try:
            return self.client.record_times(offsets, within=within)
        except BrokerError as error:
            self.problems.append(
                f"the age of the unread records is not known: {error_text(error, self.client.servers)}"
            )
            return {}

    def _members(self, group_ids: Collection[str]) -> tuple[str | None, list[dict[str, Any]] | None]:
        if not group_ids:
            return None, None
        try:
            described = self.client.describe_groups(group_ids)
        except KafkaOffsetsError as error:
            self.problems.append(
                f"the group's members are not known: {error_text(error, self.client.servers)}"
            )
            return None, None
        states = dict.fromkeys(group.state for group in described.values())
        return ", ".join(states), [
            {
                "group_id": group.group_id,
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": len(member.partitions),
            }
            for group in described.values()
            for member in group.members
        ]


def error_text(error: KafkaOffsetsError, servers: str = "") -> str:
    """Return an error as one sentence without the addresses in ``servers``, which not all viewers may see."""
    code = error.code if isinstance(error, BrokerError) else None
    if code in DENIED:
        return f"the connection's user has no permission: {remedy_for(code, 'Describe')}"
    if isinstance(error, BrokerAuthenticationError):
        return "the broker refuses the connection's user: see the log of a task of this pipeline"
    if isinstance(error, BrokerUnavailableError):
        return "the broker does not answer"
    text = str(error).split("\n")[0]
    for address in filter(None, map(str.strip, (servers, *servers.split(",")))):
        text = text.replace(address, "the broker")
    return shorten(text, 500)


def _line(group: str | None, row: PartitionState, *, compared: bool) -> tuple[Any, ...]:
    """Return the row of a partition, in the order of :data:`_COLUMNS`."""
    headroom = row.headroom or Headroom("unknown")
    return (
        *(group, *row.topic_partition, row.committed, row.checkpoint, row.log_start, row.log_end),
        *(row.lag, row.time_lag, headroom.at_most, headroom.state, row.verdict if compared else None),
    )


def _totals(rows: Collection[PartitionState], *, of_groups: bool) -> dict[str, Any]:
    """Return the totals of partitions, see :meth:`PipelineNow.read`."""
    lags = [lag for row in rows if (lag := row.lag) is not None]
    uncounted = sum(row.uncounted for row in rows)
    ages = [row.time_lag for row in rows if row.lag]
    rooms = [row.headroom for row in rows if row.headroom is not None]
    state = headrooms_json(rooms)["headroom_state"] or "unknown"
    without = sum(row.committed is None for row in rows) if of_groups else None
    if (without or uncounted) and state != "lost":
        # Without a position the number of unread records is unknown.
        state = "unknown"
    return {
        "lag": sum(lags) if lags else None,
        "time_lag": None if uncounted else _oldest(ages, 0.0 if lags else None),
        "headroom": min((left for room in rooms if (left := room.at_most) is not None), default=None),
        "headroom_state": state,
        "partitions": len(rows),
        "without_commit": without,
        "unknown_lag": len(rows) - len(lags),
        "uncounted": uncounted,
        "over": partitions_digest(row.topic_partition for row in rows),
    }


def _oldest(ages: Collection[float | None], default: float | None) -> float | None:
    """Return the age of the oldest record; ``None`` if one is unknown."""
    known = [age for age in ages if age is not None]
    return max(known, default=default) if len(known) == len(ages) else None


def _verdicts(reports: Collection[DriftReport]) -> list[str]:
    unfinished = any(report.unfinished_move or report.unfinished_recovery for report in reports)
    verdicts = [verdict for report in reports for verdict in report.drift]
    return [*([MOVE_UNFINISHED] if unfinished else []), *verdicts]


def _remedies(
    reports: Collection[DriftReport], verdicts: Collection[str], totals: Mapping[str, Any]
) -> dict[str, str]:
    """Return the remedy for each verdict, and for records that retention has deleted or will delete."""
    lost = ["records lost"] if totals["headroom_state"] == "lost" else []
    soon = ["expiring"] if totals["headroom"] is not None and totals["headroom_state"] != "none" else []
    known = {str(verdict): text for report in reports for verdict, text in report.remedies.items()}
    known[MOVE_UNFINISHED] = _FINISH
    return {verdict: known[verdict] for verdict in (*lost, *verdicts, *soon)}


def _drift(reports: Collection[DriftReport]) -> dict[str, str]:
    return {
        "verdict": min(_verdicts(reports), key=WORST_FIRST.index, default="in step"),
        "text": "; ".join(report.summary() for report in reports),
    }


def _batch(batch: NewestBatch) -> dict[str, Any]:
    age = None if batch.ended_at is None else max(0.0, time.time() - batch.ended_at.timestamp())
    return {"batch": batch.batch_id, "pending_batch": batch.pending_batch_id, "age": age}
