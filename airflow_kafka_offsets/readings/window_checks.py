"""Checks of an offset window against the broker: lost records, recreated topics, the group's commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import NoCommitError, PlanRefusedError, WindowMismatchError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import (
    Commits,
    LogRange,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import iso_time, timestamp_ms
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.log_ids import current_logs_refusals
from airflow_kafka_offsets.readings.positions import group_commits, group_positions, last_commits

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)


def check_window(client: OffsetsClient, window: OffsetWindow, selection: GroupSelection) -> None:
    """Refuse a window that cannot be read any more: records are deleted, or a topic was recreated."""
    refusals = [*window_logs_refusals(client, window), *window.refusals(client.log_ranges(window.ranges))]
    if refusals:
        raise PlanRefusedError(refusals)
    # Last, and only a warning: the window can be read wherever the group is, and the group may still move
    # before the commit.
    if selection.group_id is not None:
        warn_group_elsewhere(
            window, window_positions(client, selection.with_scope(TopicScope.exactly(window.ranges)))
        )


def window_logs_refusals(client: OffsetsClient, window: OffsetWindow) -> list[str]:
    """
    Return why a window means other records now: another cluster, or a topic that was created again.

    :raises BrokerError: if the ids were known when it was planned, and cannot be had now.
    """
    return current_logs_refusals(client, "the window", window.log_ids, remedy="trigger a new run")


def is_committed_by_run(client: OffsetsClient, selection: GroupSelection, run: CommitMetadata) -> bool:
    """
    Whether a run made one of the groups' present commits, as their metadata shows.

    :param run: in a task loop only this iteration and later ones count: those before it have committed too.
    """
    # Below every iteration: without a loop every commit of the run counts.
    first = -1 if run.iteration is None else run.iteration
    for group, topics in selection.scopes().items():
        try:
            partitions = group_positions(client, group, topics)
        # A group without a commit was committed by nobody; the others still tell.
        except NoCommitError:
            continue
        for commit in last_commits(client, group, partitions).values():
            by = None if commit is None else commit.by
            loop = -1 if by is None or by.iteration is None else by.iteration
            if by is not None and run.is_same_run(by) and loop >= first:
                return True
    return False


def window_positions(client: OffsetsClient, selection: GroupSelection) -> Positions:
    """Return the groups' positions in their topics, ``None`` for no commit; nothing without a group."""
    found = window_commits(client, selection)
    return {tp: at for commits in found.values() for tp, at in committed_offsets(commits).items()}


def window_commits(client: OffsetsClient, selection: GroupSelection) -> dict[str, Commits]:
    """Return the last commits of each group in its topics, ``None`` for no commit."""
    scopes = {} if selection.group_id is None else selection.scopes()
    return {group: group_commits(client, group, topics) for group, topics in scopes.items()}


def partitions_cut_off(
    client: OffsetsClient, starts: Offsets, logs: Mapping[TopicPartition, LogRange], moment: datetime
) -> list[str]:
    """Return where the log starts later than the window, so that records of the window may be gone."""
    # Only a start at a log start above 0 may hide deleted records. An empty log has no record whose time
    # could tell; emptied_partitions() judges that.
    doubtful = {tp: offset for tp, offset in starts.items() if 0 < offset == logs[tp].start < logs[tp].end}
    times = client.record_times(doubtful) if doubtful else {}
    asked = timestamp_ms(moment)
    gone = {tp: time for tp, time in times.items() if time is not None and time > asked}
    if unseen := set(doubtful) - set(times):
        log.warning(
            "Whether retention has deleted records of the window could not be seen on %s", summarize(unseen)
        )
    if not gone:
        return []
    tp, time = min(gone.items())
    return [
        f"the log of {summarize(gone)} starts later than {moment.isoformat()} ({tp}: at offset "
        f"{logs[tp].start}, {iso_time(time)}): records before that, {sum(logs[tp].start for tp in gone)} in "
        "all, were deleted by retention, and some of them may be the window's; start later, or with "
        "'earliest'"
    ]


def emptied_partitions(
    window: OffsetWindow, positions: Positions, logs: Mapping[TopicPartition, LogRange]
) -> list[str]:
    """Return where retention has left nothing, so that the window's records may be gone."""
    emptied = [
        tp
        for tp in window.ranges
        if 0 < logs[tp].start == logs[tp].end and (positions.get(tp) or 0) < logs[tp].start
    ]
    if not emptied:
        return []
    log.warning(
        "Retention has deleted all records, some of which may be the window's, on %s",
        summarize(emptied),
    )
    # The other partitions have records to read, which must not wait for this one.
    if window:
        return []
    return [
        f"the window is empty, and retention has deleted all records of {summarize(emptied)}, "
        f"{sum(logs[tp].start for tp in emptied)} in all: some of them may be the window's; if that is as it "
        "should be, start with 'earliest', or leave the partitions out with "
        f"{parameter_text('topics', ...)}"
    ]


def warn_group_elsewhere(window: OffsetWindow, positions: Positions) -> None:
    """Log that the window can be read, but not be committed while the group is where it is."""
    try:
        window.to_commit(
            "the group", {tp: positions[tp] for tp in window.ranges} if positions else window.committed
        )
    except WindowMismatchError as error:
        log.warning(
            "Committing this window would be refused now, since the group is elsewhere: %s", error.differences
        )
