"""Checks of an offset window against the broker: lost records, recreated topics, the group's commits."""

from __future__ import annotations

import logging
from datetime import datetime

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import (
    NoCommitError,
    PlanRefusedError,
    WindowMismatchError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import (
    Commits,
    Logs,
    Offsets,
    Positions,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import iso_time, timestamp_ms
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals
from airflow_kafka_offsets.readings.positions import group_commits
from airflow_kafka_offsets.readings.topic_times import unread_times

log = logging.getLogger(__name__)


def check_window(client: OffsetsClient, window: OffsetWindow, selection: GroupSelection) -> None:
    """Refuse a window that can no longer be read: records are deleted, or a topic was recreated."""
    refusals = current_logs_refusals(client, "the window", window.log_ids, remedy="trigger a new run")
    PlanRefusedError.raise_if([*refusals, *window.refusals(client.log_ranges(window.ranges))])
    # Only a warning: the window is readable at any position, and the group may move before the commit.
    if selection.group_id is not None:
        warn_group_elsewhere(
            window, window_positions(client, selection.with_scope(TopicScope.exactly(window.ranges)))
        )


def is_committed_by_run(client: OffsetsClient, selection: GroupSelection, run: CommitMetadata) -> bool:
    """Whether a run made one of the groups' commits, in a task loop in this or a later iteration."""
    # -1 is below every iteration: without a loop, every commit of the run counts.
    first = -1 if run.iteration is None else run.iteration
    for group, topics in selection.scopes().items():
        try:
            commits = group_commits(client, group, topics)
        # The run has not committed a group without commits; other groups may have its commits.
        except NoCommitError:
            continue
        for by in filter(None, map(CommitMetadata.of, commits.values())):
            if run.is_same_run(by) and (-1 if by.iteration is None else by.iteration) >= first:
                return True
    return False


def window_positions(client: OffsetsClient, selection: GroupSelection) -> Positions:
    """Return the groups' positions in their topics; ``None`` without a commit. Empty without a group."""
    found = window_commits(client, selection)
    return {tp: at for commits in found.values() for tp, at in committed_offsets(commits).items()}


def window_commits(client: OffsetsClient, selection: GroupSelection) -> dict[str, Commits]:
    """Return the last commits of each group in its topics; ``None`` without a commit."""
    scopes = {} if selection.group_id is None else selection.scopes()
    return {group: group_commits(client, group, topics) for group, topics in scopes.items()}


def partitions_cut_off(client: OffsetsClient, starts: Offsets, logs: Logs, moment: datetime) -> list[str]:
    """Return refusals for logs that start later than the window, whose records may be deleted."""
    # Only a log start above 0 hides deleted records. emptied_partitions() handles an empty log.
    doubtful = {tp: offset for tp, offset in starts.items() if 0 < offset == logs[tp].start < logs[tp].end}
    times = client.record_times(doubtful)
    asked = timestamp_ms(moment)
    gone = {tp: time for tp, time in times.items() if time is not None and time > asked}
    if unseen := set(doubtful) - set(times):
        raise unread_times(unseen)
    if not gone:
        return []
    tp, time = min(gone.items())
    return [
        f"the log of {summarize(gone)} starts later than {moment.isoformat()} ({tp}: at offset "
        f"{logs[tp].start}, {iso_time(time)}): retention has deleted the records before that, "
        f"{sum(logs[tp].start for tp in gone)} in total, and some of them may belong to the window; start "
        "later or with 'earliest', or give start and end as offsets"
    ]


def emptied_partitions(window: OffsetWindow, positions: Positions, logs: Logs) -> list[str]:
    """Return a refusal if retention has deleted all records of a partition, maybe some of the window's."""
    emptied = [
        tp
        for tp in window.ranges
        if 0 < logs[tp].start == logs[tp].end and (positions.get(tp) or 0) < logs[tp].start
    ]
    if not emptied:
        return []
    log.warning(
        "Retention has deleted all records, including possibly records of the window, on %s",
        summarize(emptied),
    )
    # The other partitions have records to read, and these must not wait for the empty partition.
    if window:
        return []
    return [
        f"the window is empty, and retention has deleted all records of {summarize(emptied)}, "
        f"{sum(logs[tp].start for tp in emptied)} in total: some of them may belong to the window; if that "
        "is intended, start with 'earliest', or leave the partitions out with "
        f"{parameter_text('topics', ...)}"
    ]


def warn_group_elsewhere(window: OffsetWindow, positions: Positions) -> None:
    """Log a warning if the window can be read, but not committed at the group's current position."""
    try:
        window.to_commit(
            "the group", {tp: positions[tp] for tp in window.ranges} if positions else window.committed
        )
    except WindowMismatchError as error:
        log.warning(
            "A first commit of this window would be refused now, because the group is elsewhere: %s",
            error.differences,
        )
