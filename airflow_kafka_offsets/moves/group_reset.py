"""Plans the reset of consumer groups, with the scenarios of Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.errors import (
    BrokerError,
    KafkaOffsetsError,
    OffsetsFormatError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.kafka.groups import name_members
from airflow_kafka_offsets.kafka.positions import check_partitions, group_positions, partitions_in
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, stopped_half_way
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    OutOfRangePolicy,
    iso_time,
    timestamp_ms,
)
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.reset_scenarios import (
    LITERAL_SCENARIOS,
    ByDuration,
    FromFile,
    Scenario,
    ShiftBy,
    ToOffset,
    offsets_at_time,
    starting_points,
    targets_in_log,
)
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.storage import read_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def plan_resets(
    client: OffsetsClient,
    scopes: Mapping[str, TopicScope],
    scenario: Scenario,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: MissingCommitPolicy = "fail",
    at_checkpoint: Mapping[str, Offsets] | None = None,
    by: CommitMetadata | None = None,
    interrupted: bool | None = None,
) -> list[OffsetPlan]:
    """
    Plan the reset of groups, without changing anything.

    :param scopes: group -> the partitions to move; without named topics those it has commits for.
    :param scenario: where to.
    :param now: the present time; a later one to move to is out of range.
    :param on_out_of_range: what becomes of an offset outside the log, and of a time in the future.
    :param on_no_commit: where a partition without a commit starts from, if that matters.
    :param at_checkpoint: group -> where partitions without a commit start from, if there is a checkpoint.
    :param by: who resets. A relative scenario leaves a partition alone that an earlier try has moved: one with the same
        token, or one of the same task that has stopped half-way, before it was cleared.
    :param interrupted: whether an earlier try of the task is known to have stopped half-way; by default the groups'
        commits tell.
    :return: a plan for each group, with its refusals.
    :raises UnknownTopicPartitionError: if a partition is not on the broker.
    """
    _check_named(scenario, scopes)
    refusals = active_groups(client, scopes)
    given = {
        group_id: given_offsets(scenario, group_id, scope, len(scopes)) for group_id, scope in scopes.items()
    }
    positions = {
        group_id: _positions_to_move(client, group_id, scope, given[group_id])
        for group_id, scope in scopes.items()
    }
    moved = _moved_before(client, positions, by, interrupted) if by and scenario.relative else {}
    plans = []
    for group_id, before in positions.items():
        plan = plan_positions(
            client,
            group_id,
            before,
            scenario if (named := given[group_id]) is None else ToOffset(named),
            source=scenario.as_json(),
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            at_checkpoint=(at_checkpoint or {}).get(group_id),
            moved=moved.get(group_id, ()),
            refusals=refusals.get(group_id, []),
        )
        without = [move.topic_partition for move in plan.moves if move.before is None]
        plan = plan.noting(without, "no committed offset yet, and a restore cannot take the new one away")
        plans.append(plan)
    return plans


def plan_positions(
    client: OffsetsClient,
    name: str,
    before: Positions,
    scenario: Scenario,
    *,
    source: Mapping[str, Any],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy = "fail",
    at_checkpoint: Offsets | None = None,
    moved: Sequence[TopicPartition] = (),
    refusals: Sequence[str] = (),
) -> OffsetPlan:
    """
    Plan the move of positions, those of a group or of a checkpoint's source.

    :param name: whose positions these are.
    :param at_checkpoint: where partitions without a position start from; for others ``on_no_commit`` decides.
    :param moved: partitions that an earlier try of this run has moved, and that stay there.
    :param refusals: reasons against it that are known already.
    """
    logs = client.log_ranges(before)
    filled = {
        tp: (at_checkpoint or {}).get(tp) if offset is None else offset for tp, offset in before.items()
    }
    found = _targets(client, scenario, filled, logs, now, on_out_of_range, on_no_commit)
    targets, notes = dict(found.targets), [*found.notes]
    if moved:
        targets |= {tp: offset for tp in moved if (offset := before[tp]) is not None}
        notes.append(f"moved by an earlier try of this run, left alone: {summarize(moved)}")
    return OffsetPlan.make(
        name,
        targets,
        before,
        logs,
        source=source,
        on_out_of_range=on_out_of_range,
        refusals=[*refusals, *found.refusals],
        notes=notes,
    )


def parse_scenario(name: str, value: object) -> Scenario:
    """
    Return the scenario that a parameter of a reset means.

    :param name: one of :data:`~airflow_kafka_offsets.model.reset_scenarios.SCENARIOS`.
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
        text, why = read_text(uri), "there is no such file"
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        text, why = None, str(error)
    if text is None:
        raise UsageError(
            f"from_file={shorten(uri)}: cannot be read ({why}): give a file of topic,partition,offset lines, as "
            "kafka-consumer-groups --export prints them"
        )
    return FromFile(uri, text)


def given_offsets(scenario: Scenario, group_id: str, scope: TopicScope, groups: int) -> Offsets | None:
    """
    Return the offsets that a scenario names for a group, if it names partitions by itself.

    :param groups: number of groups that are moved: given offsets are then those of all of them.
    :raises OffsetsFormatError: if the scope leaves a partition out that is named.
    """
    if isinstance(scenario, FromFile):
        offsets = scenario.offsets(group_id, groups)
    elif (named := scenario.named) is not None:
        offsets = named
        if groups > 1:
            offsets = {tp: offset for tp, offset in offsets.items() if tp in scope}
    else:
        return None
    outside = [tp for tp in offsets if tp not in scope]
    if outside:
        raise _left_out(outside)
    return offsets


def _check_named(scenario: Scenario, scopes: Mapping[str, TopicScope]) -> None:
    """Refuse offsets for a partition that none of several groups is moved on."""
    if scenario.named is not None:
        outside = [tp for tp in scenario.named if not any(tp in scope for scope in scopes.values())]
        if outside:
            raise _left_out(outside)


def _left_out(partitions: Sequence[TopicPartition]) -> OffsetsFormatError:
    return OffsetsFormatError(
        f"the offsets name {summarize(partitions)}, which topics= and group_id leave out: name them in both or in neither"
    )


def _positions_to_move(
    client: OffsetsClient, group_id: str, scope: TopicScope, given: Offsets | None
) -> Positions:
    if given is not None:
        # The offsets may name less than topics; but what topics names has to be there.
        if unused := set(scope.topics or ()) - {tp.topic for tp in given}:
            partitions_in(client, scope.narrowed(unused))
        if numbered := set(scope.numbered) - given.keys():
            check_partitions(client, numbered)
        committed = client.committed(group_id, given)
        return {tp: None if commit is None else commit.offset for tp, commit in committed.items()}
    positions = group_positions(client, group_id, scope)
    if scope.topics is None:
        # As in Kafka's tool, "all topics" are the partitions that have a committed offset.
        return {tp: offset for tp, offset in positions.items() if offset is not None}
    return positions


class _Found(NamedTuple):
    targets: Mapping[TopicPartition, int]
    notes: Sequence[str] = ()
    refusals: Sequence[str] = ()


def _targets(
    client: OffsetsClient,
    scenario: Scenario,
    before: Positions,
    logs: Mapping[TopicPartition, LogRange],
    now: datetime,
    on_out_of_range: OutOfRangePolicy,
    on_no_commit: MissingCommitPolicy,
) -> _Found:
    if isinstance(scenario, ToOffset | ShiftBy):
        try:
            starts = starting_points(before, logs, on_no_commit if scenario.from_commits else "latest")
        except PlanRefusedError as error:
            return _Found({}, refusals=error.refusals)
        left = sorted(set(before) - set(starts))
        notes = [f"no committed offset, left alone: {summarize(left)}"] if left else []
        return _Found(targets_in_log(scenario, starts, logs), notes)
    if isinstance(scenario, FromFile):
        raise UsageError("a file's offsets are those of a group: see FromFile.offsets")
    moment = now - scenario.duration if isinstance(scenario, ByDuration) else scenario.moment
    if moment <= now:
        first = client.offsets_for_time(before, max(0, timestamp_ms(moment)))
        return _look_at_records(client, offsets_at_time(first, logs), logs, moment, on_out_of_range)
    text = f"to_datetime={moment.isoformat()} is in the future"
    if on_out_of_range == "fail":
        return _Found(
            {}, refusals=[f"{text}: give a time that has passed, or to_offset='latest' for the log end"]
        )
    if on_out_of_range == "skip":
        return _Found({}, [f"{text}: every partition is left alone"])
    return _Found({tp: logs[tp].end for tp in before}, [f"{text}: moved to the log end"])


def _look_at_records(
    client: OffsetsClient,
    targets: Offsets,
    logs: Mapping[TopicPartition, LogRange],
    moment: datetime,
    on_out_of_range: OutOfRangePolicy,
) -> _Found:
    """Compare the records at the offsets that were found for a time with that time."""
    asked = timestamp_ms(moment)
    try:
        times = client.record_times({tp: offset for tp, offset in targets.items() if offset < logs[tp].end})
    except BrokerError as error:
        return _Found(targets, [f"the records at these offsets were not compared with the time: {error}"])
    there = {tp: time for tp, time in times.items() if time is not None}
    notes = [
        f"{tp}: the record at offset {targets[tp]} and after is of {iso_time(time)}, older than the time that was asked for: "
        "a transaction was committed there later"
        for tp, time in there.items()
        if time < asked
    ]
    gone = {tp: time for tp, time in there.items() if time > asked and 0 < targets[tp] == logs[tp].start}
    if not gone:
        return _Found(targets, notes)
    tp, time = next(iter(gone.items()))
    text = (
        f"the log of {summarize(gone)} starts later than {moment.isoformat()} ({tp}: at offset {logs[tp].start}, "
        f"{iso_time(time)}): earlier records were deleted by retention"
    )
    if on_out_of_range == "fail":
        remedy = (
            "set on_out_of_range='clamp' to go on from the log start, or 'skip' to leave the partition alone"
        )
        return _Found(targets, notes, [f"{text}; {remedy}"])
    if on_out_of_range == "skip":
        kept = {tp: offset for tp, offset in targets.items() if tp not in gone}
        return _Found(kept, [*notes, f"{text}: left alone"])
    return _Found(targets, [*notes, f"{text}: moved to the log start"])


def _moved_before(
    client: OffsetsClient, positions: Mapping[str, Positions], by: CommitMetadata, interrupted: bool | None
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each group that an earlier try of the same reset has moved."""
    makers = {
        group_id: {
            tp: CommitMetadata.parse(commit.metadata) if commit is not None else None
            for tp, commit in client.committed(group_id, before).items()
        }
        for group_id, before in positions.items()
    }
    everything = [each for group in makers.values() for each in group.values()]
    retried = bool(by.token) and any(each is not None and each.token == by.token for each in everything)
    if not retried and not (stopped_half_way(everything, by) if interrupted is None else interrupted):
        return {}

    def earlier(each: CommitMetadata | None) -> bool:
        return each is not None and (each.token == by.token if retried else each.same_task(by))

    return {
        group_id: [tp for tp, each in group.items() if earlier(each)] for group_id, group in makers.items()
    }


def active_groups(client: OffsetsClient, group_ids: Iterable[str]) -> dict[str, list[str]]:
    """
    Return the refusal for each group with members, as Kafka would refuse it, but with the members named.

    A window that is being committed is waited for.

    :raises GroupActiveError: if that was not over in time, which is worth another try.
    """
    return {
        group_id: [
            f"group {group_id!r} is {group.state} with {len(group.members)} members ({name_members(group.members)}): only "
            "they may commit; stop them first"
        ]
        for group_id, group in client.settled_groups(group_ids).items()
        if group.active
    }
