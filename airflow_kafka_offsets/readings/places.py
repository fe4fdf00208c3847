"""Resolves places to offsets: looks up times on the broker, and reads files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import BrokerError, NoCommitError, PlanRefusedError
from airflow_kafka_offsets.model.formats import OffsetsFile
from airflow_kafka_offsets.model.offsets import (
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    offsets_at_time,
    starting_points,
    summarize,
)
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    iso_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan import lost_remedy
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.readings.log_checks import LogCheck, known_log_ids
from airflow_kafka_offsets.readings.positions import group_commits
from airflow_kafka_offsets.readings.topic_times import refuse_unread_times


def read_place(parameter: str, value: object) -> Place:
    """Parse a parameter of a reset, and read its file, if any."""
    place = Place.parse(value, parameter)
    return Place("file", read_file(place.value.name)) if isinstance(place.value, OffsetsFile) else place


def read_file(uri: str) -> OffsetsFile:
    """Read a file of offsets in Kafka's CSV, from any storage that fsspec supports."""
    # The driver of a Spark job needs no fsspec.
    from airflow_kafka_offsets.storage import read_named_text

    lines = "topic,partition,offset lines, as kafka-consumer-groups --export prints them"
    return OffsetsFile(uri, read_named_text(uri, "from_file", f"give a file of {lines}"))


def explicit_offsets(
    client: OffsetsReader,
    place: Place,
    group_id: str,
    scope: TopicScope,
    *,
    groups: int = 1,
    within: Collection[TopicPartition] | None = None,
    log_check: LogCheck,
) -> Positions | None:
    """
    Return the offsets that a place itself has for a group; ``None`` if it has none.

    :param groups: number of groups that are moved.
    :param within: the partitions that can be moved, if they are already known.
    :param log_check: compares the logs of another group's commits with the current logs.
    """
    other = place.group_id
    if other is None:
        named = place.offsets_for_group(group_id, scope, groups)
        return None if named is None else dict(named)
    if other == group_id:
        raise PlanRefusedError(
            f"{parameter_text('to_group', group_id)} is the group that moves: name another group, or use "
            f"{parameter_text('to_offset', 'committed')} to commit its offsets again"
        )
    if within is not None:
        scope = TopicScope.exactly(tp for tp in within if tp in scope)
    try:
        commits = group_commits(client, other, scope)
    except NoCommitError:
        commits = {}
    if not any(commits.values()):
        raise NoCommitError(
            f"{parameter_text('to_group', other)} has no committed offsets there: correct the name, "
            f"{parameter_text('topics', ...)} or the connection, or grant this user Describe on the group "
            "and its topics; Kafka also deletes the offsets of a group without members, by default 7 days "
            "after its last commit"
        )
    ids = known_log_ids(client, {tp.topic for tp in commits})
    PlanRefusedError.raise_if(log_check.refusals(ids, other, commits))
    return committed_offsets(commits)


def place_offsets(
    client: OffsetsReader, place: Place, partitions: Iterable[TopicPartition], logs: Logs
) -> Offsets:
    """Return the offsets of a place that is not relative to commits; a time is looked up on the broker."""
    if place.time is None:
        return place.offsets_in_logs(dict.fromkeys(partitions, 0), logs)
    return offsets_at_time(client.offsets_for_time(partitions, max(0, timestamp_ms(place.time))), logs)


class ResolvedPlace(NamedTuple):
    """The offsets of a place under the policies; ``clamped`` partitions move to an end of their log."""

    offsets: Offsets
    notes: Sequence[str] = ()
    refusals: Sequence[str] = ()
    clamped: Sequence[TopicPartition] = ()


def resolve_place(
    client: OffsetsReader,
    place: Place,
    positions: Positions,
    logs: Logs,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy,
) -> ResolvedPlace:
    """
    Return the target offsets of a reset to a place.

    :param positions: the current position of each partition; ``None`` if ``on_no_commit`` decides.
    :param now: the current time; a later target time is out of range.
    """
    if place.batch_id is not None:
        raise parameter_error(
            "to_batch", " is a batch of a Spark checkpoint: name the checkpoint too", place.batch_id
        )
    place = place.with_duration_resolved(now)
    if place.time is not None:
        return _at_time(client, place, place.time, positions, logs, now, on_out_of_range)
    if place.offsets is not None:
        positions = {tp: place.offsets[tp] for tp in positions}
    elif not place.traits.starts_from_commits:
        positions = dict.fromkeys(positions, 0)
    starts = starting_points(positions, logs, on_no_commit)
    left = positions.keys() - starts
    if left and on_no_commit == "fail":
        return ResolvedPlace(
            {},
            refusals=[
                f"{summarize(left)} has no committed offset to {'go to' if place.offsets else 'start from'}: "
                f"leave it out with {parameter_text('topics', ...)}, or set "
                f"{parameter_text('on_no_commit')} to 'earliest', 'latest' or 'skip'"
            ],
        )
    notes = [f"no committed offset, left alone: {summarize(left)}"] if left else []
    return ResolvedPlace(place.offsets_in_logs(starts, logs), notes)


def _at_time(
    client: OffsetsReader,
    place: Place,
    moment: datetime,
    partitions: Iterable[TopicPartition],
    logs: Logs,
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
) -> ResolvedPlace:
    if moment > now:
        return _in_future(moment, {tp: logs[tp].end for tp in partitions}, on_out_of_range)
    asked, offsets = timestamp_ms(moment), place_offsets(client, place, partitions, logs)
    try:
        times = client.record_times({tp: offset for tp, offset in offsets.items() if offset < logs[tp].end})
    except BrokerError as error:
        return ResolvedPlace(
            offsets, [f"the records at these offsets were not compared with the time: {error}"]
        )
    there = {tp: time for tp, time in times.items() if time is not None}
    notes = [
        f"{tp}: the next record at or after offset {offsets[tp]} is of {iso_time(time)}, older than the "
        "requested time: a transaction was committed there later"
        for tp, time in there.items()
        if time < asked
    ]
    at_start = cut_off(client, offsets, logs).keys()
    gone = {tp: time for tp, time in there.items() if time > asked and tp in at_start}
    # With "fail" one partition is enough for a refusal.
    decided = on_out_of_range == "clamp" or (gone and on_out_of_range == "fail")
    if not decided:
        refuse_unread_times(at_start - times.keys())
    if not gone:
        return ResolvedPlace(offsets, notes)
    text = starts_later_text(gone, logs, moment, "the earlier records")
    if on_out_of_range == "fail":
        return ResolvedPlace(offsets, notes, [f"{text}; {lost_remedy()}"])
    if on_out_of_range == "skip":
        kept = {tp: offset for tp, offset in offsets.items() if tp not in gone}
        return ResolvedPlace(kept, [*notes, f"{text}: left alone"])
    return ResolvedPlace(offsets, [*notes, f"{text}: moved to the log start"], clamped=list(gone))


def _in_future(moment: datetime, ends: Offsets, on_out_of_range: OutOfRangePolicy) -> ResolvedPlace:
    text = f"{parameter_text('to_datetime', moment.isoformat())} is in the future"
    if on_out_of_range == "fail":
        latest = parameter_text("to_offset", "latest")
        return ResolvedPlace(
            {}, refusals=[f"{text}: give a time that has passed, or {latest} for the log end"]
        )
    if on_out_of_range == "skip":
        return ResolvedPlace({}, [f"{text}: every partition is left alone"])
    return ResolvedPlace(ends, [f"{text}: moved to the log end"], clamped=list(ends))


def cut_off(client: OffsetsReader, offsets: Offsets, logs: Logs) -> Offsets:
    """Return the offsets that are the first ones left in their logs after retention has deleted others."""
    # Only a log start above 0 hides deleted records.
    found = {tp: at for tp, at in offsets.items() if 0 < logs[tp].start <= at < logs[tp].end}
    # Compaction may have removed the record at the log start.
    first = client.offsets_for_time([tp for tp, at in found.items() if at > logs[tp].start], 0)
    return {tp: at for tp, at in found.items() if at in (logs[tp].start, first.get(tp))}


def starts_later_text(
    first_times: Mapping[TopicPartition, int], logs: Logs, moment: datetime, deleted: str
) -> str:
    """Say that logs do not start before a time; ``first_times`` has the time of each log's first record."""
    tp, time = min(first_times.items())
    return (
        f"the log of {summarize(first_times)} does not start before {moment.isoformat()} ({tp}: at offset "
        f"{logs[tp].start}, {iso_time(time)}): retention has deleted {deleted}"
    )
