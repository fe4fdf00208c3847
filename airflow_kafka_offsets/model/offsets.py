"""
Offsets, commits and ranges of partitions.

An offset is the offset of the *next* record to read. Spark's ``offsets/N`` and Kafka's committed offsets use
the same definition, so they are compared and copied unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy
from airflow_kafka_offsets.model.text import join_first, quote, shorten

K = TypeVar("K")
T = TypeVar("T")

MAX_OFFSET = 2**63 - 1
"""Kafka's offsets are signed 64-bit integers."""

MAX_PARTITION = 2**31 - 1
"""Kafka's partition numbers are signed 32-bit integers."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Topic names that Kafka accepts (``org.apache.kafka.common.internals.Topic``)."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then by number, and prints as Kafka does."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]

Positions = dict[TopicPartition, "int | None"]
"""An offset for each partition; ``None`` without a commit."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]
"""Whether a consumer reads records of open and aborted transactions; this decides which log end it sees."""


class Commit(NamedTuple):
    """A group's commit for a partition."""

    offset: int
    """The offset of the next record that the group would read."""
    metadata: str | None = ""
    """
    The metadata of the commit; empty if it has none, ``None`` if it could not be read. Metadata of other
    clients may have stray characters at its end, because confluent-kafka reads beyond the end.
    """


Commits = Mapping[TopicPartition, "Commit | None"]
"""Partition -> its commit; ``None`` without a commit."""


def committed_offsets(commits: Commits) -> Positions:
    """Return the offset of each commit; ``None`` without a commit."""
    return {tp: None if commit is None else commit.offset for tp, commit in commits.items()}


def as_commits(positions: Mapping[TopicPartition, int | None]) -> Commits:
    """Return positions as commits without metadata."""
    return {tp: None if at is None else Commit(at) for tp, at in positions.items()}


def positions_past_targets(positions: Mapping[K, int | None], targets: Mapping[K, int]) -> dict[K, int]:
    """Return the positions after their targets: a commit of these targets would move back."""
    return {tp: at for tp, target in targets.items() if (at := positions.get(tp)) is not None and at > target}


class LogRange(NamedTuple):
    """The offsets in a partition's log: the half-open range [start, end)."""

    start: int
    """Log start offset: the first record that retention has not deleted."""
    end: int
    """Log end offset: the high watermark, or the last stable offset under ``read_committed``."""

    def __contains__(self, offset: object) -> bool:
        """Whether ``offset`` is a position in this log; the log end is one, with no record left to read."""
        # Kafka accepts a commit at the log end: a consumer that has read all records commits it.
        return isinstance(offset, int) and self.start <= offset <= self.end

    def lag(self, position: int) -> int:
        """Return the records from a position to the log end, without those that retention has deleted."""
        return max(0, self.end - max(self.start, position))

    def lost(self, position: int) -> int:
        """Return the records that retention deleted before a reader at a position has read them."""
        return max(0, self.start - position)


Logs = Mapping[TopicPartition, LogRange]


class OffsetRange(NamedTuple):
    """The half-open range [start, end) of one partition's offsets: Spark's ``OffsetRange``."""

    start: int
    end: int
    """The offset after the last one; equal to ``start`` for an empty range."""

    @property
    def size(self) -> int:
        """Number of offsets; with transactions or compaction the range has fewer records."""
        return self.end - self.start


OffsetRanges = dict[TopicPartition, OffsetRange]


def check_ranges(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Raise a UsageError if a range ends before it starts."""
    if backwards := sorted(tp for tp, offsets in ranges.items() if offsets.end < offsets.start):
        found = f"ranges end before they start on {summarize(backwards)}"
        raise UsageError(f"{found} ({backwards[0]}: {ranges[backwards[0]]})")


def starting_points(
    committed: Positions, logs: Logs, on_no_commit: MissingCommitPolicy, known: Collection[str] = ()
) -> Offsets:
    """
    Return the position from which each partition is read; the policy decides for one without a commit.

    :param on_no_commit: ``skip`` leaves partitions without a commit out; so does ``fail``, and the caller
        refuses them.
    :param known: topics with a commit. A partition of these topics without a commit was added later; it
        starts at 0 under every policy, even if retention has deleted the record there.
    """
    found = {tp: offset for tp, offset in committed.items() if offset is not None}
    for tp in committed.keys() - found:
        # The group reads the topic: a start at any other offset would skip records of the new partition.
        if tp.topic in known:
            found[tp] = 0
        elif on_no_commit == "earliest":
            found[tp] = logs[tp].start
        elif on_no_commit == "latest":
            found[tp] = logs[tp].end
    return {tp: found[tp] for tp in committed if tp in found}


def offsets_at_time(first_at_or_after: Positions, logs: Logs) -> Offsets:
    """Return each partition's first record at or after a time, or else its log end."""
    return {
        # The log start may have moved between the two requests.
        tp: logs[tp].end if offset is None else max(offset, logs[tp].start)
        for tp, offset in first_at_or_after.items()
    }


def furthest_behind(
    positions: Iterable[Mapping[TopicPartition, int | None]],
    partitions: Iterable[TopicPartition] | None = None,
) -> Positions:
    """Return the lowest position of each partition, or of the given ones; ``None`` if one has no position."""
    lowest: Positions = {}
    for each in positions:
        for tp, position in each.items():
            known = lowest.get(tp, position)
            lowest[tp] = None if known is None or position is None else min(known, position)
    return lowest if partitions is None else {tp: lowest.get(tp) for tp in partitions}


def remaining_offsets(
    positions: Positions, target: Mapping[TopicPartition, int], logs: Logs, tolerance: int = 0
) -> Offsets:
    """
    Return the remaining offsets of each partition up to a target; empty if the target is reached.

    A position below the log start counts as the log start, because retention has deleted the records between
    them. A partition without a position has reached the target if its log has no record before the target;
    otherwise all offsets up to the target remain, whatever the tolerance.
    """
    remaining: Offsets = {}
    for tp, end in sorted(target.items()):
        position, start = positions.get(tp), logs[tp].start
        if position is None:
            if start < end:
                remaining[tp] = end
        elif (rest := end - max(position, start)) > tolerance:
            remaining[tp] = rest
    return remaining


def by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return a value for each partition as plain JSON, sorted: topic -> partition as text -> value."""
    found: dict[str, dict[str, T]] = {}
    for (topic, number), value in sorted(values.items(), key=lambda item: item[0]):
        found.setdefault(topic, {})[str(number)] = value
    return found


def by_partition(values: Mapping[str, Mapping[str, T]]) -> dict[TopicPartition, T]:
    """Read the result of :func:`by_topic` without checks."""
    return {
        TopicPartition(topic, int(number)): value
        for topic, numbers in values.items()
        for number, value in numbers.items()
    }


def flat(sources: Mapping[str, Mapping[TopicPartition, T]]) -> dict[tuple[str, TopicPartition], T]:
    """Return the values of all sources in one mapping, by source and partition, to compare them at once."""
    return {(source, tp): value for source, values in sources.items() for tp, value in values.items()}


def not_on_broker(
    wanted: Iterable[TopicPartition], on_broker: Mapping[str, Iterable[int]]
) -> list[TopicPartition]:
    """Return the wanted partitions that a broker does not have, in order."""
    there = {TopicPartition(topic, number) for topic, numbers in on_broker.items() for number in numbers}
    return sorted(set(wanted) - there)


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts ``name`` as a topic name."""
    # Kafka refuses these two names, because the broker stores a topic in a directory of the same name.
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def refuse_invalid_partitions(partitions: Iterable[TopicPartition]) -> None:
    """Refuse invalid topic names and partition numbers; with some of them the client ends the process."""
    checked: set[str] = set()
    for topic, partition in partitions:
        if topic not in checked:
            if not is_topic_name(topic):
                raise UsageError(f"found {quote(topic)}; expected the name of a topic")
            checked.add(topic)
        if not 0 <= partition <= MAX_PARTITION:
            raise UsageError(
                f"found partition {shorten(partition)} of topic {topic!r}; expected a number from 0 to "
                f"{MAX_PARTITION}"
            )


def summarize(partitions: Iterable[tuple[str, int]], limit: int = 5) -> str:
    """Name the first partitions in order: ``orders-0, orders-1 and 98 more``."""
    return join_first(sorted(partitions), limit, lambda tp: f"{tp[0]}-{tp[1]}")
