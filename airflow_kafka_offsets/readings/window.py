"""Plans an offset window: from the group's commits or a time, to a time or the log end; checks it again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    KafkaOffsetsError,
    NoCommitError,
    PlanRefusedError,
    UsageError,
    WindowMismatchError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import commit_log_refusals
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.headroom import Retention
from airflow_kafka_offsets.model.offsets import (
    Commits,
    Logs,
    OffsetRange,
    Offsets,
    Positions,
    TopicPartition,
    as_commits,
    committed_offsets,
    starting_points,
    summarize,
)
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, iso_time, parse_pattern, timestamp_ms
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow, check_bounds
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals, known_log_ids
from airflow_kafka_offsets.readings.places import cut_off, place_offsets, starts_later_text
from airflow_kafka_offsets.readings.positions import group_commits, partitions_in_scope
from airflow_kafka_offsets.readings.retention import read_retentions
from airflow_kafka_offsets.readings.topic_times import records_since, refuse_unread_times

log = logging.getLogger(__name__)


def plan_window(
    client: OffsetsClient,
    selection: GroupSelection,
    start: Place,
    end: Place,
    *,
    now: datetime,
    max_records: int | None = None,
    on_no_commit: MissingCommitPolicy = "fail",
) -> OffsetWindow:
    """
    Plan the records that one run reads, without changing anything.

    If the group has commits in a topic, a partition of it without a commit was added later; its range starts
    at 0. For a topic without any commit of the group, ``on_no_commit`` decides. If the group is already past
    the end, the range is empty.

    :param selection: without named topics, the window has the topics with commits of the group, or those that
        the offsets name.
    :param now: the current time; the window must not end later.
    :param max_records: a window with more records ends earlier, see
        :meth:`~airflow_kafka_offsets.model.window.OffsetWindow.limited`.
    :return: the window; its source has ``start``, ``end``, ``group_id``, ``limited`` (whether ``max_records``
        limited it) and ``logs`` (the ids of ``cluster`` and ``topics``).
    :raises PlanRefusedError: if records in the window are lost, or start is after end.
    """
    check_bounds(start, end, now)
    if start.kind == "committed" and selection.group_id is None:
        raise UsageError(
            f"{parameter_text('start', 'committed')} needs a {parameter_text('group_id')}; without a "
            "group start with 'earliest', a time or offsets"
        )
    commits = window_commits(client, selection)
    positions = {tp: at for each in commits.values() for tp, at in committed_offsets(each).items()}
    partitions = _partitions(client, selection.scope, start, end, positions)
    # Read before the logs: if a topic is recreated in between, the window must not get the new id.
    log_ids = known_log_ids(client, {tp.topic for tp in partitions})
    if start.kind == "committed":
        remedy = (
            f"reset the group with {parameter_text('allow_new_cluster', True)} if the pipeline moved there"
        )
        found = [commit_log_refusals(group, each, log_ids, remedy=remedy) for group, each in commits.items()]
        PlanRefusedError.raise_if([refusal for each in found for refusal in each])
    # Read after the positions: an active group may seem too far behind, but never too far ahead.
    logs = client.log_ranges(partitions)
    if start.kind == "committed":
        wanted = {tp: positions.get(tp) for tp in partitions}
        starts = _from_commits(client, selection, wanted, logs, on_no_commit)
    else:
        starts = _bound_offsets(client, start, partitions, logs)
    ends = _bound_offsets(client, end, starts, logs)
    _check_order(start, starts, ends)
    window = OffsetWindow(
        {tp: OffsetRange(offset, max(offset, ends[tp])) for tp, offset in starts.items()},
        frozenset(tp for tp in starts if tp in positions and positions[tp] is None),
    )
    if start.time is None:
        refusals = window.refusals(logs)
    else:
        # Read again: the lookup skips records that retention has deleted since the logs were read.
        logs = client.log_ranges(starts)
        refusals = window.refusals(logs) + cut_off_refusals(client, starts, logs, start.time)
        age = timestamp_ms(now) - timestamp_ms(start.time)
        refusals += emptied_refusals(client, window, positions, logs, age)
    PlanRefusedError.raise_if(refusals)
    limited = window if max_records is None else window.limited(max_records)
    warn_group_elsewhere(limited, positions)
    source = {"start": str(start), "end": str(end), "group_id": selection.group_id, "logs": log_ids.as_json()}
    return replace(limited, source={**source, "limited": limited.records < window.records})


def topics_matching(client: OffsetsClient, pattern: str) -> TopicScope:
    """Return the broker's topics whose whole name matches a regular expression; refuse to return none."""
    fits = parse_pattern(pattern, "topics_pattern").fullmatch
    topics = [topic for topic in client.partitions() if fits(topic)]
    if not topics:
        raise PlanRefusedError(
            f"no topic on the broker matches {parameter_text('topics_pattern', pattern)}: correct the "
            "pattern, or the connection"
        )
    return TopicScope(dict.fromkeys(topics))


def _partitions(
    client: OffsetsClient, scope: TopicScope, start: Place, end: Place, positions: Positions
) -> list[TopicPartition]:
    named = start.offsets or end.offsets
    if named is None and scope.topics is None and not positions:
        topics, pattern = parameter_text("topics"), parameter_text("topics_pattern")
        raise UsageError(f"a window without a group needs {topics}, {pattern}, or offsets as start or end")
    everything = sorted(positions) if scope.topics is None else partitions_in_scope(client, scope)
    if named is None:
        without_group = [tp for tp in everything if positions and tp not in positions]
        if without_group:
            raise parameter_error(
                "group_id",
                f" has no group for {summarize(without_group)}: add a key for the topic, or remove the "
                f"topic from {parameter_text('topics')}",
            )
        return everything
    outside = [tp for tp in named if tp not in scope or (positions and tp not in positions)]
    if outside:
        raise UsageError(
            f"the offsets name {summarize(outside)}, which {parameter_text('topics')} or "
            f"{parameter_text('group_id')} leaves out, or the broker does not have: name the same partitions "
            "in both"
        )
    if left := sorted(set(everything) - set(named)):
        log.info(
            "Not in the window, because the offsets do not name these partitions: %s",
            summarize(left, limit=20),
        )
    return sorted(named)


def _from_commits(
    client: OffsetsClient,
    selection: GroupSelection,
    wanted: Positions,
    logs: Logs,
    on_no_commit: MissingCommitPolicy,
) -> Offsets:
    # The group may have committed other partitions of a topic than the wanted ones.
    known = {tp.topic for tp, offset in wanted.items() if offset is not None}
    if rest := {tp.topic for tp in wanted} - known:
        positions = window_positions(client, selection.with_scope(TopicScope(dict.fromkeys(sorted(rest)))))
        known |= {tp.topic for tp, offset in positions.items() if offset is not None}
    added = [tp for tp, offset in wanted.items() if offset is None and tp.topic in known]
    unknown = [tp for tp, offset in wanted.items() if offset is None and tp.topic not in known]
    if unknown and on_no_commit == "fail":
        raise PlanRefusedError(
            f"the group has no committed offset on {summarize(unknown)}, so the window has no start there: "
            f"set {parameter_text('on_no_commit')} to 'earliest', 'latest' or 'skip' for the first window, "
            f"or correct {parameter_text('group_id')} and {parameter_text('topics')}. Kafka also deletes the "
            "offsets of a group without members, by default 7 days after its last commit"
        )
    if added:
        log.info(
            "Partitions that were added to their topics after the last commit, read from offset 0: %s",
            summarize(added),
        )
    if unknown:
        policy = parameter_text("on_no_commit", on_no_commit)
        log.info("No committed offset, %s: %s", policy, summarize(unknown))
    return dict(sorted(starting_points(wanted, logs, on_no_commit, known).items()))


def _bound_offsets(
    client: OffsetsClient, bound: Place, partitions: Iterable[TopicPartition], logs: Logs
) -> Offsets:
    if bound.time is None:
        return place_offsets(client, bound, partitions, logs)
    since = records_since(client, partitions, timestamp_ms(bound.time), logs)
    if since.ahead:
        tp, time = min(since.ahead.items())
        raise PlanRefusedError(
            f"the first record since {bound.time.isoformat()} is ahead of the clock on "
            f"{summarize(since.ahead)} ({tp}: offset {since.offsets[tp]} is of {iso_time(time)}): records of "
            "the window may follow it; correct the producer's clock, and plan with "
            f"{parameter_text('start', 'committed')} and {parameter_text('end', 'latest')}, or with offsets"
        )
    # Records that were written after the log end was read belong to the next window.
    return {tp: min(offset, logs[tp].end) for tp, offset in since.offsets.items()}


def _check_order(start: Place, starts: Offsets, ends: Offsets) -> None:
    """Refuse ends before the starts, unless the group is past the end: there is nothing to read then."""
    before = [tp for tp in starts if ends[tp] < starts[tp]]
    if before and start.traits.reproducible:
        first = before[0]
        raise PlanRefusedError(
            f"the window ends before it starts on {summarize(before)} ({first}: from {starts[first]} to "
            f"{ends[first]}): give a later end or an earlier start"
        )
    if before:
        log.info("The group is past the end of the window on %s: nothing to read there", summarize(before))


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


def cut_off_refusals(client: OffsetsClient, starts: Offsets, logs: Logs, moment: datetime) -> list[str]:
    """Return refusals for logs that start later than the window, whose records may be deleted."""
    # emptied_refusals() handles an empty log.
    doubtful = cut_off(client, starts, logs)
    times = client.record_times(doubtful)
    refuse_unread_times(doubtful.keys() - times.keys())
    # Many records may have the same time, such as the start of their hour.
    gone = {tp: time for tp, time in times.items() if time is not None and time >= timestamp_ms(moment)}
    if not gone:
        return []
    return [
        f"{starts_later_text(gone, logs, moment, 'the records before that')}, "
        f"{sum(logs[tp].start for tp in gone)} in total, and some of them may belong to the window; start "
        "later or with 'earliest', or give start and end as offsets"
    ]


def emptied_refusals(
    client: OffsetsClient, window: OffsetWindow, positions: Positions, logs: Logs, age: int
) -> list[str]:
    """
    Return a refusal if retention has deleted all records of a partition, maybe some of the window's.

    :param age: milliseconds since the window's start.
    """
    emptied = [tp for tp in window.ranges if 0 < logs[tp].start == logs[tp].end]
    # A group has read the records before its position, maybe those of the window if it is past its start.
    missed = any(positions.get(tp) != logs[tp].end for tp in emptied)
    if not missed and all((positions.get(tp) or 0) <= at for tp, at in window.start.items()):
        return []
    log.warning(
        "Retention has deleted all records, including possibly records of the window, on %s",
        summarize(emptied),
    )
    if window:
        # The other partitions have records to read, and these must not wait for a partition that was empty
        # long before the window.
        kept = read_retentions(client, {tp.topic for tp in emptied}, _without_right)
        old = {
            topic
            for topic, each in kept.items()
            if isinstance(each, Retention) and each.ms is not None and each.ms <= age
        }
        emptied = [tp for tp in emptied if tp.topic in old]
    if not emptied:
        return []
    return [
        f"retention has deleted all records of {summarize(emptied)}, {sum(logs[tp].start for tp in emptied)} "
        "in total: some of them may belong to the window; if that is intended, start with 'earliest', or "
        f"leave the partitions out with {parameter_text('topics', ...)}"
    ]


def _without_right(error: KafkaOffsetsError) -> str:
    if isinstance(error, BrokerAuthenticationError):
        return str(error)
    raise error


def warn_group_elsewhere(window: OffsetWindow, positions: Positions) -> None:
    """Log a warning if the window can be read, but not committed at the group's current position."""
    try:
        window.to_commit("the group", as_commits(positions or window.committed))
    except WindowMismatchError as error:
        log.warning(
            "A first commit of this window would be refused now, because the group is elsewhere: %s",
            error.differences,
        )
