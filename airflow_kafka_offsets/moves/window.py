"""Which records are a window's: from where the group stands, or a time, until a time or the end of the log?"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import (
    BrokerError,
    NoCommitError,
    PlanRefusedError,
    SetupError,
    UsageError,
    WindowMismatchError,
)
from airflow_kafka_offsets.kafka.positions import group_positions, partitions_in
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.offsets import (
    LogRange,
    OffsetRange,
    Offsets,
    Positions,
    TopicPartition,
    summarize,
)
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, iso_time, timestamp_ms
from airflow_kafka_offsets.model.reset_scenarios import offsets_at_time
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.window_bounds import WindowBound, check_bounds

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)


def plan_window(
    client: OffsetsClient,
    named: Groups,
    start: WindowBound,
    end: WindowBound,
    *,
    now: datetime,
    max_records: int | None = None,
    on_no_commit: MissingCommitPolicy = "fail",
) -> OffsetWindow:
    """
    Plan which records one run reads; nothing is changed.

    A partition without a commit, of a topic that the group has commits on, was added since: it begins at its log
    start. A topic that the group has no commit on is for ``on_no_commit``. Where the group stands behind the end
    already, the range is empty.

    :param named: the group that the window's end is committed to, ``None`` if there is none; and the topics, without
        named ones those that the group has commits on, or that the offsets name.
    :param now: the present time; a window must not end later.
    :param max_records: a window with more records ends earlier, see
        :meth:`~airflow_kafka_offsets.model.window.OffsetWindow.limited`.
    :return: the window; its source says ``start``, ``end``, ``group_id``, whether it was ``limited``, and the
        ``topic_ids`` of the topics without a commit.
    :raises PlanRefusedError: if it cannot be read as planned: records are lost, or it is none.
    :raises NoCommitError: if no topics are named and the group has no commit.
    :raises UnknownTopicPartitionError: if a partition is not on the broker.
    """
    check_bounds(start, end, now)
    if start.at == "committed" and named.group_id is None:
        raise UsageError(
            "start='committed' needs a group_id; without a group start with 'earliest', a time or offsets"
        )
    if max_records is not None and max_records < 1:
        raise UsageError(f"max_records={max_records}: expected 1 or more, or None for all")
    held = _held(client, named)
    partitions = _partitions(client, named.scope, start, end, held)
    # Before the logs: of a topic that is created again in between the window does not have the new id.
    ids = _topic_ids(client, [tp for tp in partitions if held.get(tp) is None])
    # Positions before logs: a live group then looks further behind than it is, never further ahead.
    logs = client.log_ranges(partitions)
    if start.at == "committed":
        wanted = {tp: held.get(tp) for tp in partitions}
        starts = _from_commits(wanted, _known_topics(client, named, wanted), logs, on_no_commit)
    else:
        starts = _at(client, start, partitions, logs)
    ends = _at(client, end, starts, logs)
    before = [tp for tp in starts if ends[tp] < starts[tp]]
    if before and start.lasting:
        first = before[0]
        raise PlanRefusedError(
            [
                f"the window ends before it starts on {summarize(before)} ({first}: from {starts[first]} to {ends[first]}): "
                "give a later end or an earlier start"
            ]
        )
    if before:
        log.info("The group is past the end of the window on %s: nothing to read there", summarize(before))
    window = OffsetWindow(
        {tp: OffsetRange(offset, max(offset, ends[tp])) for tp, offset in starts.items()},
        frozenset(tp for tp in starts if tp in held and held[tp] is None),
    )
    refusals = window.refusals(logs)
    if start.moment is not None:
        refusals += _deleted_before(client, starts, logs, start.moment)
        refusals += _emptied(window, held, logs)
    if refusals:
        raise PlanRefusedError(refusals)
    limited = window if max_records is None else window.limited(max_records)
    _note_elsewhere(limited, held)
    source = {
        "start": str(start),
        "end": str(end),
        "group_id": named.group_id,
        "limited": limited.records < window.records,
        "topic_ids": ids,
    }
    return replace(limited, source=source)


def check_window(client: OffsetsClient, window: OffsetWindow, named: Groups) -> None:
    """
    See whether a window that was planned earlier can still be read.

    :raises PlanRefusedError: if not: retention has taken records of it, or a topic was recreated.
    """
    refusals = [*created_again(client, window), *window.refusals(client.log_ranges(window.ranges))]
    if refusals:
        raise PlanRefusedError(refusals)
    if named.group_id is not None:
        _note_elsewhere(window, _held(client, named.within(TopicScope.of(window.ranges))))


def created_again(client: OffsetsClient, window: OffsetWindow) -> list[str]:
    """
    Say which topics of a window were deleted and created again since it was planned, as their ids tell.

    :raises BrokerError: if the ids were known then, and cannot be had now.
    """
    planned = window.source.get("topic_ids")
    topics = {tp.topic for tp in window.ranges}
    known = (
        {topic: planned[topic] for topic in topics & planned.keys()} if isinstance(planned, Mapping) else {}
    )
    if not known:
        return []
    now = client.topic_ids(known)
    others = sorted(topic for topic, found in now.items() if found != known[topic])
    if not others:
        return []
    return [
        f"{', '.join(map(repr, others))} was deleted and created again since the window was planned (topic id "
        f"{shorten(known[others[0]])} then, {now[others[0]]} now), or the connection leads to another cluster: the window's "
        "offsets mean other records by now; trigger a new run"
    ]


def committed_by(client: OffsetsClient, named: Groups, dag: str, run: str) -> bool:
    """Whether a run of a DAG made one of the groups' present commits, as their metadata tell."""
    for group, topics in named.scopes().items():
        try:
            partitions = group_positions(client, group, topics)
        except NoCommitError:
            continue
        for commit in client.committed(group, partitions).values():
            said = CommitMetadata.parse(commit.metadata) if commit is not None else None
            if said is not None and said.run == run and said.dag in ("", dag):
                return True
    return False


def topics_like(client: OffsetsClient, pattern: str) -> TopicScope:
    """
    Return the topics on the broker whose whole name fits a regular expression.

    :raises UsageError: if it is none.
    :raises PlanRefusedError: if no topic fits.
    """
    try:
        fits = re.compile(pattern).fullmatch
    except re.error as error:
        raise UsageError(f"topics_pattern={pattern!r} is not a regular expression: {error}") from None
    topics = [topic for topic in client.partitions() if fits(topic)]
    if not topics:
        raise PlanRefusedError(
            [f"no topic on the broker fits topics_pattern={pattern!r}: correct it, or the connection"]
        )
    return TopicScope(dict.fromkeys(topics))


def _topic_ids(client: OffsetsClient, partitions: list[TopicPartition]) -> dict[str, str]:
    """Return the ids of the topics of partitions without a commit: Kafka deletes a topic's commits with the topic."""
    try:
        return client.topic_ids(tp.topic for tp in partitions)
    except (BrokerError, SetupError) as error:
        log.warning("A topic that is deleted and created again after this will not be noticed: %s", error)
        return {}


def _held(client: OffsetsClient, named: Groups) -> Positions:
    """Return where the groups stand in their topics, ``None`` for no commit; nothing without a group."""
    if named.group_id is None:
        return {}
    held: Positions = {}
    for group, topics in named.scopes().items():
        held |= group_positions(client, group, topics)
    return held


def _partitions(
    client: OffsetsClient, scope: TopicScope, start: WindowBound, end: WindowBound, held: Positions
) -> list[TopicPartition]:
    named = start.offsets or end.offsets
    if named is None and scope.topics is None and not held:
        raise UsageError("a window without a group needs topics, topics_pattern, or offsets as start or end")
    everything = sorted(held) if scope.topics is None else partitions_in(client, scope)
    if named is None:
        without_group = [tp for tp in everything if held and tp not in held]
        if without_group:
            raise UsageError(
                f"group_id has no group for {summarize(without_group)}: add a key for the topic, or leave it out of topics"
            )
        return everything
    outside = [tp for tp in named if tp not in scope or (held and tp not in held)]
    if outside:
        raise UsageError(
            f"the offsets name {summarize(outside)}, which topics= or group_id leaves out, or the broker does not have: name "
            "the same in both"
        )
    if left := sorted(set(everything) - set(named)):
        log.info("Not in the window, since the offsets do not name it: %s", summarize(left, limit=20))
    return sorted(named)


def _known_topics(client: OffsetsClient, named: Groups, wanted: Positions) -> set[str]:
    """Return the topics of which the group has committed any partition, also one that is not wanted."""
    known = {tp.topic for tp, offset in wanted.items() if offset is not None}
    unknown = {tp.topic for tp in wanted} - known
    if unknown:
        held = _held(client, named.within(TopicScope(dict.fromkeys(sorted(unknown)))))
        known |= {tp.topic for tp, offset in held.items() if offset is not None}
    return known


def _from_commits(
    wanted: Positions,
    known: set[str],
    logs: Mapping[TopicPartition, LogRange],
    on_no_commit: MissingCommitPolicy,
) -> Offsets:
    added = [tp for tp, offset in wanted.items() if offset is None and tp.topic in known]
    unknown = [tp for tp, offset in wanted.items() if offset is None and tp.topic not in known]
    if unknown and on_no_commit == "fail":
        raise PlanRefusedError(
            [
                f"the group has no committed offset on {summarize(unknown)}, so the window has no start there: set "
                "on_no_commit to 'earliest', 'latest' or 'skip' for the first window, or correct group_id and topics. Kafka "
                "also forgets a group that nobody joins, 7 days after its last commit by default"
            ]
        )
    if added:
        log.info("Added to its topic since the last commit, read from its log start: %s", summarize(added))
    if unknown:
        log.info("No committed offset, on_no_commit=%r: %s", on_no_commit, summarize(unknown))
    starts: Offsets = {tp: offset for tp, offset in wanted.items() if offset is not None}
    starts |= {tp: logs[tp].start for tp in added}
    if on_no_commit == "earliest":
        starts |= {tp: logs[tp].start for tp in unknown}
    elif on_no_commit == "latest":
        starts |= {tp: logs[tp].end for tp in unknown}
    return dict(sorted(starts.items()))


def _at(
    client: OffsetsClient,
    bound: WindowBound,
    partitions: list[TopicPartition] | Offsets,
    logs: Mapping[TopicPartition, LogRange],
) -> Offsets:
    if bound.offsets is not None:
        return {tp: bound.offsets[tp] for tp in partitions}
    if bound.moment is not None:
        first = client.offsets_for_time(partitions, max(0, timestamp_ms(bound.moment)))
        found = offsets_at_time(first, {tp: logs[tp] for tp in partitions})
        # What came after the look at the log's end is the next window's.
        return {tp: min(offset, logs[tp].end) for tp, offset in found.items()}
    return {tp: logs[tp].start if bound.at == "earliest" else logs[tp].end for tp in partitions}


def _deleted_before(
    client: OffsetsClient, starts: Offsets, logs: Mapping[TopicPartition, LogRange], moment: datetime
) -> list[str]:
    """Say where the log starts later than the window: records of the window may be gone, and nobody can count them."""
    doubtful = {tp: offset for tp, offset in starts.items() if 0 < offset == logs[tp].start < logs[tp].end}
    times = client.record_times(doubtful) if doubtful else {}
    asked = timestamp_ms(moment)
    gone = {tp: time for tp, time in times.items() if time is not None and time > asked}
    unseen = sorted(set(doubtful) - set(times))
    if unseen:
        log.warning(
            "Whether retention has deleted records of the window could not be seen on %s", summarize(unseen)
        )
    if not gone:
        return []
    tp, time = next(iter(sorted(gone.items())))
    return [
        f"the log of {summarize(gone)} starts later than {moment.isoformat()} ({tp}: at offset {logs[tp].start}, "
        f"{iso_time(time)}): records before that, {sum(logs[tp].start for tp in gone)} in all, were deleted by retention, and "
        "some of them may be the window's; start later, or with 'earliest'"
    ]


def _emptied(window: OffsetWindow, held: Positions, logs: Mapping[TopicPartition, LogRange]) -> list[str]:
    """Say where retention has left nothing, so that nobody can tell whether the window's records were there."""
    emptied = [
        tp
        for tp in window.ranges
        if 0 < logs[tp].start == logs[tp].end and (held.get(tp) or 0) < logs[tp].start
    ]
    if not emptied:
        return []
    log.warning(
        "Retention has deleted all records, some of which may be the window's, on %s", summarize(emptied)
    )
    if window:
        return []
    return [
        f"the window is empty, and retention has deleted all records of {summarize(emptied)}, "
        f"{sum(logs[tp].start for tp in emptied)} in all: some of them may be the window's; if that is as it should be, "
        "start with 'earliest', or leave the partitions out with topics="
    ]


def _note_elsewhere(window: OffsetWindow, held: Positions) -> None:
    """Say in the log that the window can be read, but not be committed as long as the group stands where it does."""
    try:
        window.to_commit("the group", {tp: held[tp] for tp in window.ranges} if held else window.committed)
    except WindowMismatchError as error:
        log.warning(
            "Committing this window would be refused now, since the group is elsewhere: %s", error.differences
        )
