"""
Offsets, commits and ranges of partitions.

Offsets are exclusive ends: that of the *next* record to read. Spark's ``offsets/N`` and Kafka's committed
offsets mean the same number, so they are compared and copied as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy
from airflow_kafka_offsets.model.text import shorten

MAX_OFFSET = 2**63 - 1
"""Kafka's offsets are signed 64-bit integers."""

MAX_PARTITION = 2**31 - 1
"""Kafka's partitions are numbered by signed 32-bit integers."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""What Kafka accepts as a topic's name (``org.apache.kafka.common.internals.Topic``)."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then by number, and prints as Kafka does."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]
"""An offset for each partition."""

Positions = dict[TopicPartition, "int | None"]
"""An offset for each partition, ``None`` where there is none (no commit)."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]
"""Whether records of open and aborted transactions count: it decides which log end a consumer sees."""


class Commit(NamedTuple):
    """What a group committed for a partition."""

    offset: int
    """The next record that it would read."""
    metadata: str | None = ""
    """
    The text that was committed with it; empty if there was none, ``None`` if it could not be read. Text of
    other clients may have stray characters at its end: confluent-kafka reads beyond it.
    """


Commits = Mapping[TopicPartition, "Commit | None"]
"""The commit of each partition, ``None`` where there is none."""


def committed_offsets(commits: Commits) -> Positions:
    """Return the offset of each commit, ``None`` where there is none."""
    return {tp: None if commit is None else commit.offset for tp, commit in commits.items()}


def committed_texts(commits: Commits) -> dict[TopicPartition, str | None]:
    """Return the metadata of each commit, ``None`` where there is none or it could not be read."""
    return {tp: None if commit is None else commit.metadata for tp, commit in commits.items()}


def positions_past_targets(
    positions: Mapping[TopicPartition, int | None], targets: Mapping[TopicPartition, int]
) -> Offsets:
    """Return the positions that are after their targets: a commit of these would take them backwards."""
    return {tp: at for tp, target in targets.items() if (at := positions.get(tp)) is not None and at > target}


class LogRange(NamedTuple):
    """What a partition's log holds: the offsets in the half-open range [start, end)."""

    start: int
    """Log start offset: the first record that retention has left."""
    end: int
    """Log end offset: the high watermark, or the last stable offset under ``read_committed``."""

    def __contains__(self, offset: object) -> bool:
        """Whether ``offset`` is a position in this log; the end itself is one (nothing left to read)."""
        # Kafka accepts a commit at the log end, and a consumer that has read all commits it.
        return isinstance(offset, int) and self.start <= offset <= self.end


Logs = Mapping[TopicPartition, LogRange]
"""What the log of each partition holds."""


class OffsetRange(NamedTuple):
    """The half-open range [start, end) of one partition's offsets: Spark's ``OffsetRange``."""

    start: int
    """The first offset of the range."""
    end: int
    """The offset after the last one; equal to ``start`` for an empty range."""

    @property
    def size(self) -> int:
        """Offsets in the range: as many records, or more than there are with transactions or compaction."""
        return self.end - self.start


OffsetRanges = dict[TopicPartition, OffsetRange]
"""A range of offsets for each partition."""


def starting_points(
    committed: Positions, logs: Logs, on_no_commit: MissingCommitPolicy, known: Collection[str] = ()
) -> Offsets:
    """
    Return where each partition starts from, those without a commit as the policy says.

    :param on_no_commit: under ``skip`` they are left out, and also under ``fail``, which the caller refuses.
    :param known: topics that have a commit: a partition without one was added since, and starts at its log
        start whatever the policy.
    """
    found = {tp: offset for tp, offset in committed.items() if offset is not None}
    for tp in committed.keys() - found:
        # The group reads the topic: to start a new partition of it anywhere else would skip records that
        # came with it.
        if tp.topic in known or on_no_commit == "earliest":
            found[tp] = logs[tp].start
        elif on_no_commit == "latest":
            found[tp] = logs[tp].end
    return {tp: found[tp] for tp in committed if tp in found}


def offsets_at_time(first_at_or_after: Positions, logs: Logs) -> Offsets:
    """
    Return each partition's offset at a time: its first record at or after, else its log end.

    A partition that is empty, or whose last record is older, has nothing at or after the time: its log end
    is the exact answer.
    """
    return {
        # The log start may have moved between the two questions.
        tp: logs[tp].end if offset is None else max(offset, logs[tp].start)
        for tp, offset in first_at_or_after.items()
    }


def is_topic_name(name: str) -> bool:
    """Whether Kafka would accept ``name`` for a topic."""
    # A topic's directory on the broker has its name: Kafka refuses these two.
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_partitions(partitions: Iterable[TopicPartition]) -> None:
    """Refuse partitions that cannot exist, before the client sees them: some names end the process."""
    checked: set[str] = set()
    for topic, partition in partitions:
        if topic not in checked:
            if not is_topic_name(topic):
                raise UsageError(f"found {shorten(repr(topic))}; expected the name of a topic")
            checked.add(topic)
        if not 0 <= partition <= MAX_PARTITION:
            raise UsageError(
                f"found partition {shorten(partition)} of topic {topic!r}; expected a number from 0 to "
                f"{MAX_PARTITION}"
            )


def summarize(partitions: Iterable[tuple[str, int]], limit: int = 5) -> str:
    """Name the first partitions in order: ``orders-0, orders-1 and 98 more``."""
    ordered = sorted(partitions)
    names = ", ".join(f"{topic}-{number}" for topic, number in ordered[:limit])
    return names if len(ordered) <= limit else f"{names} and {len(ordered) - limit} more"
