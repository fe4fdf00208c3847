"""Target offsets: what a scenario, a time or a batch means for each partition."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.offsets import LogRange, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy
from airflow_kafka_offsets.model.reset_scenarios import ShiftBy, ToOffset
from airflow_kafka_offsets.model.topics import TopicScope


def starting_points(
    committed: Mapping[TopicPartition, int | None],
    logs: Mapping[TopicPartition, LogRange],
    on_no_commit: MissingCommitPolicy,
) -> Offsets:
    """
    Return where each partition starts from, those without a commit as the policy says.

    :raises PlanRefusedError: under ``fail``, if a partition has no commit.
    """
    without = [tp for tp, offset in committed.items() if offset is None]
    if without and on_no_commit == "fail":
        raise PlanRefusedError(
            [
                f"{summarize(without)} has no committed offset to start from: leave it out with topics=, or "
                "set on_no_commit to 'earliest', 'latest' or 'skip'"
            ]
        )
    at = {"earliest": lambda log: log.start, "latest": lambda log: log.end}.get(on_no_commit)
    found = {tp: offset for tp, offset in committed.items() if offset is not None}
    return found | ({tp: at(logs[tp]) for tp in without} if at else {})


def targets_in_log(
    scenario: ToOffset | ShiftBy,
    starts: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogRange],
) -> Offsets:
    """
    Return the offset meant for each partition, where no time has to be looked up.

    :param starts: see :func:`starting_points`; other scenarios than ``shift_by`` and ``current`` only take
        its partitions.
    """
    if isinstance(scenario, ShiftBy):
        # An offset below 0 cannot be written down; it is below every log start, and so out of range, all the
        # same.
        return {tp: offset + scenario.by for tp, offset in starts.items()}
    if isinstance(scenario.to, Mapping):
        return {tp: scenario.to[tp] for tp in starts}
    if scenario.to == "earliest":
        return {tp: logs[tp].start for tp in starts}
    if scenario.to == "latest":
        return {tp: logs[tp].end for tp in starts}
    if isinstance(scenario.to, int):
        return dict.fromkeys(starts, scenario.to)
    return dict(starts)


def offsets_at_time(
    first_at_or_after: Mapping[TopicPartition, int | None], logs: Mapping[TopicPartition, LogRange]
) -> Offsets:
    """
    Return each partition's offset at a time: its first record at or after, else its log end.

    A partition that is empty, or whose last record is older, has nothing at or after the time: its log end
    is the exact answer.
    """
    return {
        tp: logs[tp].end if offset is None else max(offset, logs[tp].start)
        for tp, offset in first_at_or_after.items()
    }


def sources_at_batch(
    batch_id: int,
    ends: Mapping[str, Offsets],
    newest: Mapping[str, Offsets],
    scope: TopicScope,
) -> dict[str, Offsets]:
    """
    Return where the partitions of the newest batch were at the end of an earlier one.

    :param ends: source -> where the earlier batch ends. What only this batch has is passed over.
    :param newest: source -> where the newest batch ends. Partitions outside the scope stay there.
    :raises PlanRefusedError: if a partition of the scope was added after the earlier batch.
    """
    added = {
        tp
        for source, offsets in newest.items()
        for tp in offsets
        if tp in scope and tp not in ends.get(source, {})
    }
    if added:
        raise PlanRefusedError(
            [
                f"batch {batch_id} has no offset of {summarize(added)}, which the query has read only since: "
                "leave it out with topics=, or give a later batch"
            ]
        )
    return {
        source: {tp: ends[source][tp] if tp in scope else offset for tp, offset in offsets.items()}
        for source, offsets in newest.items()
    }
