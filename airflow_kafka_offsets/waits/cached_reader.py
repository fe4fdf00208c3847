"""A reader that shares the requests of many waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError, ClientCrashedError, SetupError
from airflow_kafka_offsets.kafka.failures import NO_LEADER
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    OffsetRange,
    TopicPartition,
)
from airflow_kafka_offsets.model.topics import TopicScope

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

METADATA_AGE = 60.0
"""Seconds after which a topic's partitions are read again, to find added partitions."""

_TOGETHER = 5.0
"""
Time limit in seconds for the commits of many groups, so that one unavailable coordinator does not stop all
waits.
"""

_TIMES_WITHIN = 2.0
"""
Time limit in seconds for the timestamps of one wait; other waits are due, and the next poll can continue.
"""

_RECORD_TIMES = 10_000
"""
Largest number of cached timestamps. They are dropped with the metadata, because a topic may have been
recreated.
"""

K = TypeVar("K")
V = TypeVar("V")


class _Round(Generic[K, V]):
    """Values of partitions, read once a round; the first request reads the last round's partitions."""

    def __init__(self, read: Callable[[K, Iterable[TopicPartition]], Mapping[TopicPartition, V]]) -> None:
        self._read = read
        self._known: dict[K, dict[TopicPartition, V]] = {}
        self._wanted: dict[K, set[TopicPartition]] = {}
        self._before: dict[K, set[TopicPartition]] = {}

    def begin(self) -> None:
        self._known = {}
        self._before, self._wanted = self._wanted, {}

    def before(self, key: K) -> set[TopicPartition] | None:
        """Return the partitions that the last round requested; ``None`` if it requested none."""
        return self._before.get(key)

    def put(self, key: K, values: Mapping[TopicPartition, V]) -> None:
        """Add values that another request has read."""
        # These values must not be read again together with the first missing partition.
        self._before.pop(key, None)
        self._known.setdefault(key, {}).update(values)

    def get(self, key: K, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, V]:
        wanted = set(partitions)
        self._wanted.setdefault(key, set()).update(wanted)
        known = self._known.setdefault(key, {})
        if missing := wanted - known.keys():
            more = self._before.pop(key, set()) - known.keys()
            known.update(self._read_more(key, missing, more) or self._read(key, missing))
        return {tp: known[tp] for tp in wanted}

    def _read_more(
        self, key: K, missing: set[TopicPartition], more: set[TopicPartition]
    ) -> Mapping[TopicPartition, V]:
        if more <= missing:
            return {}
        try:
            return self._read(key, missing | more)
        except BrokerError as error:
            if isinstance(error, BrokerUnavailableError) and error.code != NO_LEADER:
                raise
            # A partition of another wait may be the cause: its topic was deleted, may not be read, or has no
            # leader.
            return {}


class CachedReader:
    """
    An :class:`~airflow_kafka_offsets.kafka.reader.OffsetsReader` that sends each request once in a round.

    A round has two steps for all waits together: first the positions, then the logs. One request reads the
    commits of all groups. The partitions of topics are cached for :data:`METADATA_AGE`, and read again if a
    partition is missing.

    :param client: sends the requests.
    """

    def __init__(self, client: OffsetsClient) -> None:
        self._client = client
        self._commits: _Round[str, Commit | None] = _Round(self._read_commits)
        self._group_results: dict[str, BrokerError | None] = {}
        self._logs: _Round[IsolationLevel, LogRange] = _Round(
            lambda isolation_level, partitions: client.log_ranges(partitions, isolation_level=isolation_level)
        )
        self._topics: dict[str, tuple[float, list[int]]] = {}
        self._topics_of: dict[str, tuple[float, frozenset[str]]] = {}
        self._settings: dict[str, tuple[float, dict[str, str | None]]] = {}
        self._record_times: dict[tuple[str, TopicPartition, int], int] = {}
        self._record_times_since = 0.0

    def next_round(self) -> None:
        """Start a round: positions and logs are read again."""
        self._commits.begin()
        self._logs.begin()
        self._group_results = {}

    def read_groups(self, group_ids: Collection[str]) -> None:
        """Read the commits of this round's groups with one request."""
        if not group_ids:
            return
        wanted = {group_id: self._commits.before(group_id) for group_id in group_ids}
        try:
            # The partitions of the last round; any other partition of a wait takes a separate request.
            found = self._client.committed_groups(wanted, within=_TOGETHER)
        except (BrokerError, SetupError, OSError) as error:
            # Includes the case that no process can be started now, which must not end a wait.
            found = dict.fromkeys(
                group_ids, error if isinstance(error, BrokerError) else BrokerUnavailableError(str(error))
            )
        for group_id, commits in found.items():
            if not isinstance(commits, BrokerError):
                self._group_results[group_id] = None
                self._commits.put(group_id, {**dict.fromkeys(wanted[group_id] or ()), **commits})
            elif isinstance(commits, BrokerUnavailableError | ClientCrashedError):
                self._group_results[group_id] = commits
            # For any other error, each wait requests its own partitions, because another wait's partition may
            # be the cause.

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """Return the partitions of topics, cached for at most :data:`METADATA_AGE`."""
        if topics is None:
            return self._client.partitions()
        wanted = sorted(set(topics))
        now = time.monotonic()
        oldest = now - METADATA_AGE
        stale = [topic for topic in wanted if self._topics.get(topic, (oldest, ()))[0] <= oldest]
        if stale:
            # Removed before the request, so that a deleted topic does not stay in the result.
            for topic in stale:
                self._topics.pop(topic, None)
            self._topics |= {topic: (now, found) for topic, found in self._client.partitions(stale).items()}
        return {topic: self._topics[topic][1] for topic in wanted if topic in self._topics}

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return settings of topics, cached for at most :data:`METADATA_AGE`."""
        now = time.monotonic()
        found: dict[str, dict[str, str | None] | BrokerError] = {
            topic: self._settings[topic][1]
            for topic in topics
            if topic in self._settings and self._settings[topic][0] > now - METADATA_AGE
        }
        if missing := set(topics) - found.keys():
            try:
                found |= self._client.topic_settings(missing)
            except (SetupError, OSError) as error:
                # As above: no process can be started now.
                raise BrokerUnavailableError(str(error)) from error
            self._settings |= {
                topic: (now, settings)
                for topic in missing
                if not isinstance(settings := found[topic], BrokerError)
            }
        return found

    def cluster_id(self) -> str:
        """Return the id of the cluster from the client."""
        return self._client.cluster_id()

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics; polls do not need them, so they are not cached."""
        return self._client.log_ids(topics)

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Commit | None]:
        """Return a group's commits."""
        return self._commits.get(group_id, partitions)

    def _read_commits(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        if group_id not in self._group_results:
            return self._client.committed(group_id, partitions)
        if (error := self._group_results[group_id]) is not None:
            raise copy(error)
        # Not over a connection for the group, because many groups may have partitions without a commit.
        wanted = list(partitions)
        commits = self._client.committed_groups({group_id: wanted})[group_id]
        if isinstance(commits, BrokerError):
            raise commits
        return {tp: commits.get(tp) for tp in wanted}

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all commits of a group; its list of topics is cached for at most :data:`METADATA_AGE`."""
        since, topics = self._topics_of.get(group_id, (0.0, frozenset()))
        if topics and since > time.monotonic() - METADATA_AGE:
            wanted = TopicScope(dict.fromkeys(topics)).partitions_on_broker(self.partitions(topics))
            commits = sorted(self.committed(group_id, wanted).items())
            if found := {tp: commit for tp, commit in commits if commit is not None}:
                return found
        everywhere = self._read_everywhere(group_id)
        self._topics_of[group_id] = (time.monotonic(), frozenset(tp.topic for tp in everywhere))
        return everywhere

    def _read_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        if group_id not in self._group_results:
            return self._client.committed_everywhere(group_id)
        if (error := self._group_results[group_id]) is not None:
            raise copy(error)
        everywhere = self._client.committed_groups({group_id: None})[group_id]
        if isinstance(everywhere, BrokerError):
            raise everywhere
        return everywhere

    def sees_all_topics(self) -> bool:
        """Return whether the user may see all topics, according to the broker."""
        return self._client.sees_all_topics()

    def assigned(self, group_id: str) -> Collection[TopicPartition]:  # noqa: ARG002
        """
        Return no partitions: the request takes a child process, and the first poll of a wait has already sent
        it.
        """
        return ()

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return the ranges of the logs."""
        try:
            return self._logs.get(isolation_level, partitions)
        except BrokerError:
            # A topic may have been deleted.
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
        """Return the timestamp of the first record at or after each offset; known timestamps are cached."""
        now = time.monotonic()
        # The whole cache, including deleted and recreated topics.
        if len(self._record_times) > _RECORD_TIMES or self._record_times_since < now - METADATA_AGE:
            self._record_times, self._record_times_since = {}, now
        keys = {tp: (isolation_level, tp, offset) for tp, offset in offsets.items()}
        known: dict[TopicPartition, int | None] = {
            tp: self._record_times[key] for tp, key in keys.items() if key in self._record_times
        }
        missing = {tp: offset for tp, offset in offsets.items() if tp not in known}
        if missing:
            found = self._client.record_times(
                missing, within=within or _TIMES_WITHIN, isolation_level=isolation_level
            )
            # "No record follows" is not cached, because it may change.
            self._record_times |= {keys[tp]: at for tp, at in found.items() if at is not None}
            known |= found
        return known

    def first_since(
        self, ranges: Mapping[TopicPartition, OffsetRange], timestamp_ms: int
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return the first record in each range that is not older than a time; no poll asks for it."""
        return self._client.first_since(ranges, timestamp_ms)
