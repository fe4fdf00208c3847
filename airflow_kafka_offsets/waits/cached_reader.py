"""How do many waits that look at the same time share what they ask the broker?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError
from airflow_kafka_offsets.kafka.failures import NO_LEADER
from airflow_kafka_offsets.model.offsets import Commit, IsolationLevel, LogRange, TopicPartition

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

METADATA_AGE = 60.0
"""Seconds after which a topic's partitions are asked for again: that shows partitions that were added."""

_RECORD_TIMES = 10_000
"""Times of records that are remembered, and no longer than metadata: another topic may have taken the name."""

V = TypeVar("V")


class _Answers(Generic[V]):
    """
    What partitions answered in this round, under each key.

    Who asks first asks for all that was asked in the round before: one request where several would follow.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[TopicPartition, V]] = {}
        self._wanted: dict[Hashable, set[TopicPartition]] = {}
        self._before: dict[Hashable, set[TopicPartition]] = {}

    def next_round(self) -> None:
        self._known = {}
        self._before, self._wanted = self._wanted, {}

    def get(
        self,
        key: Hashable,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, V]],
    ) -> dict[TopicPartition, V]:
        wanted = set(partitions)
        self._wanted.setdefault(key, set()).update(wanted)
        known = self._known.setdefault(key, {})
        if not wanted <= known.keys():
            self._ask(key, known, wanted, ask)
        return {tp: known[tp] for tp in wanted}

    def _ask(
        self,
        key: Hashable,
        known: dict[TopicPartition, V],
        wanted: set[TopicPartition],
        ask: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, V]],
    ) -> None:
        missing = wanted - known.keys()
        also = self._before.pop(key, set()) - known.keys()
        if also - missing:
            try:
                known.update(ask(missing | also))
            except BrokerError as error:
                if isinstance(error, BrokerUnavailableError) and error.code != NO_LEADER:
                    raise
            else:
                return
            # What others ask for may be the reason: a topic that is gone, or may not be read, or has no leader.
        known.update(ask(missing))


class CachedReader:
    """
    Answers questions of many waits, each question of a round only once.

    It has the questions of :class:`~airflow_kafka_offsets.kafka.reader.OffsetsReader`. A round has two steps for all waits
    together, first the positions, then the logs; :meth:`next_round` begins one. The partitions of topics are
    remembered for :data:`METADATA_AGE`, and asked for again when one of them is not there.

    :param client: asks the broker.
    """

    def __init__(self, client: OffsetsClient) -> None:
        self._client = client
        self._commits: _Answers[Commit | None] = _Answers()
        self._logs: _Answers[LogRange] = _Answers()
        self._topics: dict[str, tuple[float, list[int]]] = {}
        self._topics_of: dict[str, tuple[float, frozenset[str]]] = {}
        self._record_times: dict[tuple[str, TopicPartition, int], int] = {}
        self._record_times_since = 0.0

    def next_round(self) -> None:
        """Forget what was answered; what is asked from now on is asked anew."""
        self._commits.next_round()
        self._logs.next_round()

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """Return the partitions of topics, as they were at most :data:`METADATA_AGE` ago."""
        if topics is None:
            return self._client.partitions()
        wanted = sorted(set(topics))
        oldest = time.monotonic() - METADATA_AGE
        stale = [topic for topic in wanted if self._topics.get(topic, (oldest, ()))[0] <= oldest]
        if stale:
            for topic in stale:
                self._topics.pop(topic, None)
            now = time.monotonic()
            self._topics.update(
                {topic: (now, found) for topic, found in self._client.partitions(stale).items()}
            )
        return {topic: self._topics[topic][1] for topic in wanted if topic in self._topics}

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Commit | None]:
        """Return what a group committed."""
        return self._commits.get(
            group_id, partitions, lambda wanted: self._client.committed(group_id, wanted)
        )

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all that a group committed, in the topics where it had a commit at most a minute ago."""
        since, topics = self._topics_of.get(group_id, (0.0, frozenset()))
        if topics and since > time.monotonic() - METADATA_AGE:
            wanted = [
                TopicPartition(topic, number)
                for topic, numbers in self.partitions(topics).items()
                for number in numbers
            ]
            found = self.committed(group_id, wanted)
            if any(commit is not None for commit in found.values()):
                return {tp: commit for tp, commit in sorted(found.items()) if commit is not None}
        everywhere = self._client.committed_everywhere(group_id)
        self._topics_of[group_id] = (time.monotonic(), frozenset(tp.topic for tp in everywhere))
        return everywhere

    def sees_all_topics(self) -> bool:
        """Whether the user may see all topics, as far as the broker tells."""
        return self._client.sees_all_topics()

    def assigned(self, group_id: str) -> Collection[TopicPartition]:  # noqa: ARG002
        """Return nothing: it takes a child process, and the first look of a wait has asked."""
        return ()

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return what the logs hold."""
        try:
            return self._logs.get(
                isolation_level,
                partitions,
                lambda wanted: self._client.log_ranges(wanted, isolation_level=isolation_level),
            )
        except BrokerError:
            # A topic may have been deleted: what is remembered of it is of no more use.
            for tp in partitions:
                self._topics.pop(tp.topic, None)
            raise

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time."""
        return self._client.offsets_for_time(partitions, timestamp_ms)

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """Return when the first record at or after each offset was written; one that is known is not fetched again."""
        now = time.monotonic()
        if len(self._record_times) > _RECORD_TIMES or self._record_times_since < now - METADATA_AGE:
            self._record_times, self._record_times_since = {}, now
        known: dict[TopicPartition, int | None] = {
            tp: at
            for tp, offset in offsets.items()
            if (at := self._record_times.get((isolation_level, tp, offset))) is not None
        }
        missing = {tp: offset for tp, offset in offsets.items() if tp not in known}
        if missing:
            found = self._client.record_times(missing, within=within, isolation_level=isolation_level)
            # That nothing follows may be otherwise at the next look.
            self._record_times.update(
                {(isolation_level, tp, missing[tp]): at for tp, at in found.items() if at is not None}
            )
            known |= found
        return known
