"""A client that shares the requests of many waits."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import get_args

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError, SetupError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import NO_LEADER
from airflow_kafka_offsets.model.offsets import Commit, Commits, IsolationLevel, LogRange, TopicPartition

METADATA_AGE = 60.0
"""Seconds after which what is known of topics is read again."""


class _LogRanges:
    """The ranges of logs, read once in a round; the first request reads the last round's partitions."""

    def __init__(
        self, client: OffsetsClient, isolation_level: IsolationLevel, before: set[TopicPartition]
    ) -> None:
        self._client = client
        self._isolation_level = isolation_level
        self._before = before
        self._known: dict[TopicPartition, LogRange] = {}
        self.wanted: set[TopicPartition] = set()

    def get(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        wanted = set(partitions)
        self.wanted |= wanted
        if missing := wanted - self._known.keys():
            more, self._before = self._before - self._known.keys(), set()
            try:
                self._known |= self._read(missing | more)
            except BrokerError as error:
                if more <= missing or (isinstance(error, BrokerUnavailableError) and error.code != NO_LEADER):
                    raise
                # The cause may be another wait: its topic was deleted, may not be read, or has no leader.
                self._known |= self._read(missing)
        return {tp: self._known[tp] for tp in wanted}

    def _read(self, partitions: set[TopicPartition]) -> dict[TopicPartition, LogRange]:
        return self._client.log_ranges(partitions, isolation_level=self._isolation_level)


@contextmanager
def _starting_admin_process() -> Iterator[None]:
    """Raise a temporary error if the admin process cannot be started now, which must not end a wait."""
    try:
        yield
    except (SetupError, OSError) as error:
        raise BrokerUnavailableError(str(error)) from error


class CachedReader:
    """
    Reads like an :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient`, and sends each request once in a
    round.

    A round has two steps for all waits together: first the positions, then the logs. One request reads the
    commits of all groups. Partitions and settings of topics are cached for :data:`METADATA_AGE`.
    """

    def __init__(self, client: OffsetsClient) -> None:
        self._client = client
        # Not cached here: the client keeps the answer itself, or waits rarely ask, or for different times.
        self.cluster_id, self.log_ids = client.cluster_id, _starting_admin_process()(client.log_ids)
        self.sees_all_topics = client.sees_all_topics  # cached for each round
        self.offsets_for_time, self.first_since = client.offsets_for_time, client.first_since
        self._commits: dict[str, dict[TopicPartition, Commit] | BrokerError] = {}
        self._logs = {level: _LogRanges(client, level, set()) for level in get_args(IsolationLevel)}
        self._forget()

    def _forget(self) -> None:
        """Forget what is known of topics: partitions are added, and topics are deleted and created again."""
        self._since = time.monotonic()
        self._partitions: dict[str, list[int]] = {}
        self._read_this_round: set[str] = set()
        self._settings: dict[str, dict[str, str | None] | BrokerError] = {}
        self._record_times: dict[tuple[str, TopicPartition, int], int] = {}

    def next_round(self) -> None:
        """Start a round: positions and logs are read again."""
        if time.monotonic() > self._since + METADATA_AGE:
            self._forget()
        self._commits, self._read_this_round = {}, set()
        self.sees_all_topics = cache(self._client.sees_all_topics)
        # New ones: an answer to the last round that is late must not get into this one.
        self._logs = {
            level: _LogRanges(self._client, level, logs.wanted) for level, logs in self._logs.items()
        }

    def read_groups(self, group_ids: Collection[str]) -> None:
        """Read the commits of this round's groups with one request, for all partitions of all waits."""
        if not group_ids:
            return
        try:
            with _starting_admin_process():
                # In random order: if there is no time for all, no wait is always among the last ones. A short
                # time limit, so that one unavailable coordinator does not stop all waits.
                wanted = dict.fromkeys(random.sample([*group_ids], len(group_ids)))
                self._commits |= self._client.committed_groups(wanted, within=5.0 + len(wanted) * 0.01)
        except BrokerError as error:
            self._commits |= dict.fromkeys(group_ids, error)

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the cached partitions of topics; a topic that is not known is asked for."""
        wanted = sorted(set(topics))
        if unknown := [topic for topic in wanted if topic not in self._partitions]:
            self._partitions |= self._client.partitions(unknown)
            self._read_this_round.update(unknown)
        return {topic: self._partitions[topic] for topic in wanted if topic in self._partitions}

    def forget_partitions(self, topics: Iterable[str]) -> None:
        """Forget the partitions of topics that an earlier round has read."""
        for topic in {*topics} - self._read_this_round:
            self._partitions.pop(topic, None)

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str | None] | BrokerError]:
        """Return the cached settings of topics; a topic without an answer is asked for again."""
        wanted = set(topics)
        if unknown := {each for each in wanted if not isinstance(self._settings.get(each), dict)}:
            with _starting_admin_process():
                self._settings |= self._client.topic_settings(unknown)
        return {topic: self._settings[topic] for topic in wanted}

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits."""
        everywhere = self.committed_everywhere(group_id)
        return {tp: everywhere.get(tp) for tp in partitions}

    def committed_everywhere(self, group_id: str) -> dict[TopicPartition, Commit]:
        """Return all commits of a group."""
        if group_id not in self._commits:
            self.read_groups([group_id])
        found = self._commits[group_id]
        if isinstance(found, BrokerError):
            raise copy(found)  # callers append text to an error
        return found

    def assigned(self, group_id: str) -> Collection[TopicPartition]:  # noqa: ARG002
        """Return none: the request takes a child process, and a wait's first poll has already sent it."""
        return ()

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return the ranges of the logs."""
        try:
            return self._logs[isolation_level].get(partitions)
        except BrokerError:
            # A topic may have been deleted.
            for tp in partitions:
                self._partitions.pop(tp.topic, None)
            raise

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        within: float | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, int | None]:
        """Return the timestamp of the first record at or after each offset; known timestamps are cached."""
        if len(self._record_times) > 10_000:
            self._record_times = {}
        keys = {tp: (isolation_level, tp, offset) for tp, offset in offsets.items()}
        known: dict[TopicPartition, int | None] = {
            tp: self._record_times[key] for tp, key in keys.items() if key in self._record_times
        }
        missing = {tp: offset for tp, offset in offsets.items() if tp not in known}
        if missing:
            # A short time limit: other waits are due, and the next poll can continue.
            found = self._client.record_times(missing, within=within or 2.0, isolation_level=isolation_level)
            # "No record follows" is not cached, because it may change.
            self._record_times |= {keys[tp]: at for tp, at in found.items() if at is not None}
            known |= found
        return known
