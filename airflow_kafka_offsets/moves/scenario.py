"""Scenarios of a reset as they are given, and the offsets that they mean on a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import (
    BrokerError,
    KafkaOffsetsError,
    OffsetsFormatError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    iso_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.reset_scenarios import (
    LITERAL_SCENARIOS,
    ByDuration,
    FromFile,
    Scenario,
    ShiftBy,
    ToBatch,
    ToOffset,
)
from airflow_kafka_offsets.model.reset_targets import offsets_at_time, starting_points, targets_in_log
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.storage import read_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def parse_scenario(name: str, value: object) -> Scenario:
    """
    Return the scenario of one of the :data:`~airflow_kafka_offsets.model.reset_scenarios.SCENARIOS`.

    :raises UsageError: if the value is none for it, or the file cannot be read.
    """
    return read_file(str(value)) if name == "from_file" else LITERAL_SCENARIOS[name](value)


def read_file(uri: str) -> FromFile:
    """
    Read a file of offsets in Kafka's CSV, from any storage that fsspec reaches.

    :raises UsageError: if it cannot be read.
    :raises CheckpointUnavailableError: if its storage does not answer.
    """
    try:
        text, why = read_text(uri), f"{shorten(uri)}: there is no such file"
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        # It names the file, unless that holds a password.
        text, why = None, str(error)
    if text is None:
        raise UsageError(
            f"from_file: cannot be read ({why}): give a file of topic,partition,offset lines, "
            "as kafka-consumer-groups --export prints them"
        )
    return FromFile(uri, text)


def given_offsets(scenario: Scenario, group_id: str, scope: TopicScope, groups: int) -> Offsets | None:
    """
    Return the offsets that a scenario names for a group, if it names partitions by itself.

    :param groups: number of groups that are moved: given offsets are then those of all of them.
    :raises OffsetsFormatError: if the scope leaves a partition out that is named.
    """
    offsets = scenario.offsets(group_id, groups) if isinstance(scenario, FromFile) else scenario.named
    if offsets is None:
        return None
    if groups > 1 and scenario.named is not None:
        return {tp: offset for tp, offset in offsets.items() if tp in scope}
    if outside := [tp for tp in offsets if tp not in scope]:
        raise _left_out(outside)
    return offsets


def check_named(scenario: Scenario, scopes: Mapping[str, TopicScope]) -> None:
    """Refuse offsets for a partition that none of several groups is moved on."""
    if outside := [tp for tp in scenario.named or () if not any(tp in scope for scope in scopes.values())]:
        raise _left_out(outside)


def _left_out(partitions: Sequence[TopicPartition]) -> OffsetsFormatError:
    return OffsetsFormatError(
        f"the offsets name {summarize(partitions)}, which topics= and group_id leave out: name them in both "
        "or in neither"
    )


class Targets(NamedTuple):
    """
    The offsets that a scenario means, with remarks and refusals.

    ``clamped`` has the partitions that are moved to an end of their log because a time is not in it.
    """

    targets: Mapping[TopicPartition, int]
    notes: Sequence[str] = ()
    refusals: Sequence[str] = ()
    clamped: Sequence[TopicPartition] = ()


def find_targets(
    client: OffsetsClient,
    scenario: Scenario,
    before: Positions,
    logs: Mapping[TopicPartition, LogRange],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy,
) -> Targets:
    """
    Return where a scenario moves partitions, asking the broker for times.

    :param before: where each partition starts from, ``None`` for one that ``on_no_commit`` decides.
    """
    if isinstance(scenario, ToOffset | ShiftBy):
        try:
            starts = starting_points(before, logs, on_no_commit if scenario.from_commits else "latest")
        except PlanRefusedError as error:
            return Targets({}, refusals=error.refusals)
        left = sorted(set(before) - set(starts))
        notes = [f"no committed offset, left alone: {summarize(left)}"] if left else []
        return Targets(targets_in_log(scenario, starts, logs), notes)
    if isinstance(scenario, FromFile):
        raise UsageError("a file's offsets are those of a group: see FromFile.offsets")
    if isinstance(scenario, ToBatch):
        raise UsageError(
            f"to_batch={scenario.batch_id} is a batch of a Spark checkpoint: name the checkpoint as well"
        )
    moment = now - scenario.duration if isinstance(scenario, ByDuration) else scenario.moment
    if moment <= now:
        first = client.offsets_for_time(before, max(0, timestamp_ms(moment)))
        return _compare_with_records(client, offsets_at_time(first, logs), logs, moment, on_out_of_range)
    text = f"to_datetime={moment.isoformat()} is in the future"
    if on_out_of_range == "fail":
        return Targets(
            {}, refusals=[f"{text}: give a time that has passed, or to_offset='latest' for the log end"]
        )
    if on_out_of_range == "skip":
        return Targets({}, [f"{text}: every partition is left alone"])
    ends = {tp: logs[tp].end for tp in before}
    return Targets(ends, [f"{text}: moved to the log end"], clamped=list(ends))


def _compare_with_records(
    client: OffsetsClient,
    targets: Offsets,
    logs: Mapping[TopicPartition, LogRange],
    moment: datetime,
    on_out_of_range: OutOfRangePolicy,
) -> Targets:
    asked = timestamp_ms(moment)
    try:
        times = client.record_times({tp: offset for tp, offset in targets.items() if offset < logs[tp].end})
    except BrokerError as error:
        return Targets(targets, [f"the records at these offsets were not compared with the time: {error}"])
    there = {tp: time for tp, time in times.items() if time is not None}
    notes = [
        f"{tp}: the record at offset {targets[tp]} and after is of {iso_time(time)}, older than the time "
        "that was asked for: a transaction was committed there later"
        for tp, time in there.items()
        if time < asked
    ]
    gone = {tp: time for tp, time in there.items() if time > asked and 0 < targets[tp] == logs[tp].start}
    if not gone:
        return Targets(targets, notes)
    tp, time = min(gone.items())
    text = (
        f"the log of {summarize(gone)} starts later than {moment.isoformat()} ({tp}: at offset "
        f"{logs[tp].start}, {iso_time(time)}): earlier records were deleted by retention"
    )
    if on_out_of_range == "fail":
        remedy = (
            "set on_out_of_range='clamp' to go on from the log start, or 'skip' to leave the partition alone"
        )
        return Targets(targets, notes, [f"{text}; {remedy}"])
    if on_out_of_range == "skip":
        kept = {tp: offset for tp, offset in targets.items() if tp not in gone}
        return Targets(kept, [*notes, f"{text}: left alone"])
    return Targets(targets, [*notes, f"{text}: moved to the log start"], clamped=list(gone))
