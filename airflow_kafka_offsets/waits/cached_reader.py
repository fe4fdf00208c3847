"""A reader that asks each question of many waits once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError, ClientCrashedError, SetupError
from airflow_kafka_offsets.kafka.failures import NO_LEADER
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Commit, Commits, IsolationLevel, LogRange, TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

METADATA_AGE = 60.0
"""Seconds after which a topic's partitions are read again: that shows partitions that were added."""

_TOGETHER = 5.0
"""Seconds for the commits of many groups; a coordinator that does not answer must not stop all waits."""

_TIMES_WITHIN = 2.0
"""Seconds for the times of one wait's records: other waits are due, and the next poll can continue."""

_RECORD_TIMES = 10_000
"""Times of records that are kept, and no longer than metadata: another topic may have taken the name."""

K = TypeVar("K")
V = TypeVar("V")


class _Round(Generic[K, V]):
    """Values of partitions, read once in a round; the first request is for what the last round wanted."""

    def __init__(self, read: Callable[[K, Iterable[TopicPartition]], Mapping[TopicPartition, V]]) -> None:
        self._read = read
        self._known: dict[K, dict[TopicPartition, V]] = {}
        self._wanted: dict[K, set[TopicPartition]] = {}
        self._before: dict[K, set[TopicPartition]] = {}

    def begin(self) -> None:
        self._known = {}
        self._before, self._wanted = self._wanted, {}

    def before(self, key: K) -> set[TopicPartition] | None:
        """Return the partitions that the last round wanted; ``None`` if none."""
        return self._before.get(key)

    def put(self, key: K, values: Mapping[TopicPartition, V]) -> None:
        """Take values that were read in another way."""
        # They are read: asking for them with the first missing partition would read them twice.
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
            # One that only others want may be the reason: a topic that is gone, may not be read, or has no
            # leader.
            return {}


class CachedReader:
    """
    Answers the questions of :class:`~airflow_kafka_offsets.kafka.reader.OffsetsReader`, each once in a round.

    A round has two steps for all waits together: first the positions, then the logs. The commits of all
    groups are read together. The partitions of topics are remembered for :data:`METADATA_AGE`, and read again
    when one of them is missing.

    :param client: asks the broker.
    """

    def __init__(self, client: OffsetsClient) -> None:
        self._client = client
        self._commits: _Round[str, Commit | None] = _Round(self._read_commits)
        self._together: dict[str, BrokerError | None] = {}
        self._logs: _Round[IsolationLevel, LogRange] = _Round(
            lambda isolation_level, partitions: client.log_ranges(partitions, isolation_level=isolation_level)
        )
        self._topics: dict[str, tuple[float, list[int]]] = {}
        self._topics_of: dict[str, tuple[float, frozenset[str]]] = {}
        self._settings: dict[str, tuple[float, dict[str, str | None]]] = {}
        self._record_times: dict[tuple[str, TopicPartition, int], int] = {}
        self._record_times_since = 0.0

    def next_round(self) -> None:
        """Begin a round: what is asked from now on is read again."""
        self._commits.begin()
        self._logs.begin()
        self._together = {}

    def read_groups(self, group_ids: Collection[str]) -> None:
        """Read the commits of the groups that this round asks for, together."""
        if not group_ids:
            return
        wanted = {group_id: self._commits.before(group_id) for group_id in group_ids}
        try:
            # Those that the last round wanted: what a wait asks for besides takes a request of its own.
            found = self._client.committed_groups(wanted, within=_TOGETHER)
        except (BrokerError, SetupError, OSError) as error:
            # Also where no process can be started at the moment: that is no reason to end a wait.
            found = dict.fromkeys(
                group_ids, error if isinstance(error, BrokerError) else BrokerUnavailableError(str(error))
            )
        for group_id, commits in found.items():
            if not isinstance(commits, BrokerError):
                self._together[group_id] = None
                self._commits.put(group_id, {**dict.fromkeys(wanted[group_id] or ()), **commits})
            elif isinstance(commits, BrokerUnavailableError | ClientCrashedError):
                self._together[group_id] = commits
            # Else each wait asks for its own partitions: one of another wait may be the reason.

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """Return the partitions of topics, as they were at most :data:`METADATA_AGE` ago."""
        if topics is None:
            return self._client.partitions()
        wanted = sorted(set(topics))
        now = time.monotonic()
        oldest = now - METADATA_AGE
        stale = [topic for topic in wanted if self._topics.get(topic, (oldest, ()))[0] <= oldest]
        if stale:
            # Forgotten before they are asked for: a topic that is gone must not stay in the answer.
            for topic in stale:
                self._topics.pop(topic, None)
            self._topics |= {topic: (now, found) for topic, found in self._client.partitions(stale).items()}
        return {topic: self._topics[topic][1] for topic in wanted if topic in self._topics}

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return settings of topics, as they were at most :data:`METADATA_AGE` ago."""
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
                # As above: no process can be started at the moment.
                raise BrokerUnavailableError(str(error)) from error
            self._settings |= {
                topic: (now, settings)
                for topic in missing
                if not isinstance(settings := found[topic], BrokerError)
            }
        return found

    def cluster_id(self) -> str:
        """Return the id of the cluster, which the client knows."""
        return self._client.cluster_id()

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics; a poll does not ask for them."""
        return self._client.log_ids(topics)

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Commit | None]:
        """Return what a group committed."""
        return self._commits.get(group_id, partitions)

    def _read_commits(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        if group_id not in self._together:
            return self._client.committed(group_id, partitions)
        if (error := self._together[group_id]) is not None:
            raise copy(error)
        # Not by a connection to the group: there may be as many groups as have a partition without a commit.
        wanted = list(partitions)
        commits = self._client.committed_groups({group_id: wanted})[group_id]
        if isinstance(commits, BrokerError):
            raise commits
        return {tp: commits.get(tp) for tp in wanted}

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all that a group committed, in the topics where it had a commit at most a minute ago."""
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
        if group_id not in self._together:
            return self._client.committed_everywhere(group_id)
        if (error := self._together[group_id]) is not None:
            raise copy(error)
        everywhere = self._client.committed_groups({group_id: None})[group_id]
        if isinstance(everywhere, BrokerError):
            raise everywhere
        return everywhere

    def sees_all_topics(self) -> bool:
        """Return whether the user may see all topics, as far as the broker says."""
        return self._client.sees_all_topics()

    def assigned(self, group_id: str) -> Collection[TopicPartition]:  # noqa: ARG002
        """Return nothing: it takes a child process, and the first poll of a wait has asked."""
        return ()

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return what the logs hold."""
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
        """Return when the first record at or after each offset was written; known times are kept."""
        now = time.monotonic()
        # All at once, also those of topics that are gone or were created again.
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
            # That no record follows may change.
            self._record_times |= {keys[tp]: at for tp, at in found.items() if at is not None}
            known |= found
        return known
