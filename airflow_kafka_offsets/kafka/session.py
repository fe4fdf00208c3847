"""Connections, topics, time limits and the lock that all calls of one client share."""

from __future__ import annotations

import logging
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka.config import client_config
from airflow_kafka_offsets.kafka.connection import MAX_KEPT, Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import TOPIC_HIDDEN, BackgroundErrors, CallError, Failure
from airflow_kafka_offsets.kafka.requests import OFFSETS_TOPIC, read_topics
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.model.broker_addresses import SERVERS
from airflow_kafka_offsets.model.offsets import TopicPartition, refuse_invalid_partitions
from airflow_kafka_offsets.model.parameters import parse_seconds
from airflow_kafka_offsets.model.wording import dag_text, parameter_text, unexpected

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

LONGEST_TIMEOUT = 3_600.0
"""Maximum seconds of one call."""

_NEAR_CHUNKS, _FAR_CHUNKS = 2, 5
"""Factors by which a chunk may be larger than the configured size."""

# Seconds that close() waits: while a commit is pending, the client's own close may take a minute.
_CLOSE = 3.0
# Seconds left for all calls together; below this limit no further call begins.
_LEAST = 0.1

INTERNAL = (OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata")

_MANY = 200
"""Above this number of topics, the list of all topics is read: otherwise each topic takes a request."""


class Session:
    """State that the calls of one :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` share."""

    def __init__(
        self, config: Mapping[str, Any], *, timeout: float, total: float | None, chunk_size: int
    ) -> None:
        if chunk_size < 1:
            raise unexpected("chunk_size", chunk_size, "1 or more")
        self.config = client_config(config)
        self.servers = str(self.config[SERVERS])
        self.timeout = parse_seconds(timeout, "timeout", maximum=LONGEST_TIMEOUT, allow_zero=False) or 30.0
        self.chunk_size = chunk_size
        self.connections = Connections(self.config)
        self.kept = [self.connections]
        """All connections that are kept between calls."""
        self.leaders: dict[str, array[int]] = {}
        """
        Topic -> the id of the broker that led each partition when the topic was last read, -1 without a
        leader. Outdated leaders only cause more requests.
        """
        self.cluster_id: str | None = None
        """
        Id in the newest response, empty if the broker reports none: the brokers' name may lead to another
        cluster later.
        """
        self._admin_cluster = ""
        self._sees_all_topics: bool | None = None
        self._total = self._left = math.inf if total is None else total
        self._lock = threading.RLock()
        self._closed = False

    def close(self) -> None:
        """Close all connections; wait a few seconds at most. A running call closes its own at its end."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self.connections.close(_CLOSE)
            finally:
                self._lock.release()

    def note_cluster(self, found: ClusterMetadata) -> None:
        """Keep the cluster's id and the leaders in a response about topics."""
        self.cluster_id = found.cluster_id or ""
        for name, described in found.topics.items():
            if described.error is None:
                partitions = sorted(described.partitions.items())
                self.leaders[name] = array("i", [partition.leader for _, partition in partitions])

    def note_admin_cluster(self, cluster: str) -> None:
        """Note the cluster to which the admin process is connected, see :meth:`check_cluster`."""
        self._admin_cluster = cluster
        self.check_cluster()

    def check_cluster(self, found: str = "") -> None:
        """Refuse two clusters: each client is on one, and an offset of one is another record on the other."""
        known = {each for connections in self.kept for each in connections.cluster_ids}
        clusters = sorted({found, self._admin_cluster, *known} - {""})
        if len(clusters) > 1:
            raise UsageError(
                f"the addresses in {SERVERS} ({self.servers}) lead to clusters {' and '.join(clusters)}: "
                "name brokers of one cluster only; if a name now leads to another cluster, begin again "
                "with a new process"
            )

    @contextmanager
    def begin_call(self, what: str, timeout: float | None = None) -> Iterator[Call]:
        """Begin a call, and subtract its time from the total of all calls."""
        if self._left < _LEAST:
            raise BrokerUnavailableError(
                f"{what}: earlier calls have used up the {self._total:g} s for all calls together: check "
                "why the broker answers slowly, then try again"
            )
        timeout = timeout or self.timeout
        start = time.monotonic()
        try:
            yield Call(what, self.servers, timeout if timeout <= self._left else round(self._left, 1))
        finally:
            self._left -= time.monotonic() - start

    @contextmanager
    def exclusive(self, call: Call) -> Iterator[None]:
        """Keep out calls of other threads, and all calls after the client was closed."""
        if not self._lock.acquire(timeout=call.seconds_left):
            raise BrokerUnavailableError(
                f"{call.what}: another call of this client took all of {call.timeout:g} s: check why "
                f"the broker answers slowly, then try again{dag_text(', or use two clients')}"
            )
        try:
            if self._closed:
                raise UsageError(f"{call.what}: this client was closed; create a new one")
            yield
        finally:
            if self._closed:
                self.connections.close(0)
            self._lock.release()

    @contextmanager
    def begin_exclusive(self, what: str) -> Iterator[Call]:
        """Begin a call that uses the connections, which one thread does at a time."""
        with self.begin_call(what) as call, self.exclusive(call):
            yield call

    def ask(self, call: Call, question: Callable[[Connection, float], T]) -> T:
        """Repeat ``question`` (of a connection and the attempt's seconds) until it returns an answer."""
        # Log starts and log ends are asked over two connections: with an oauth_cb, opening the second one
        # later would take another second.
        several = 2 if "oauth_cb" in self.config else 1
        connection, *_ = self.connections.get_several(several, "read_uncommitted")
        return self.ask_over([connection], call, lambda timeout: question(connection, timeout))

    def ask_over(self, connections: Sequence[Connection], call: Call, question: Callable[[float], T]) -> T:
        """Repeat a question over several connections until there is an answer."""

        def background_errors() -> BackgroundErrors:
            first, *others = (connection.background_errors for connection in connections)
            for other in others:
                first.add_failures(other.failures)
            return first

        try:
            found = retry_until(call, question, background_errors)
        except CallError as error:
            raise call.explain(error.failure, background_errors=background_errors()) from None
        self.check_cluster()
        return found

    def topics(self, call: Call, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of some topics, without missing topics."""
        wanted = sorted(set(topics))
        refuse_invalid_partitions(TopicPartition(topic, 0) for topic in wanted)
        found: dict[str, list[int]] = {}
        todo = wanted[::-1]

        def question(connection: Connection, timeout: float) -> dict[str, list[int]]:
            if len(todo) > _MANY:
                every = read_topics(connection, None, timeout, self.note_cluster)
                found.update({topic: every[topic] for topic in todo if topic in every})
                # The list does not say whether a topic is hidden or missing.
                todo[:] = [topic for topic in todo if topic not in every]
            while todo:
                if call.seconds_left <= 0:
                    raise CallError(Failure("_TIMED_OUT", f"no answer for topic {todo[-1]}"))
                within = min(timeout, call.seconds_left)
                found.update(read_topics(connection, todo[-1], within, self.note_cluster))
                todo.pop()
            return found

        return self.ask(call, question)

    def all_topics(self, call: Call) -> dict[str, list[int]]:
        """Return the partitions of all topics except Kafka's internal ones."""
        self.sees_all_topics(call)
        topics = self.ask(
            call, lambda connection, timeout: read_topics(connection, None, timeout, self.note_cluster)
        )
        return {topic: topics[topic] for topic in sorted(topics) if topic not in INTERNAL}

    def sees_all_topics(self, call: Call) -> bool:
        """Return whether the user may describe all topics, and warn once if not."""
        if self._sees_all_topics is not False:  # the right may be taken away during a long wait
            self._sees_all_topics = self.ask(call, _sees_offsets_topic)
            if not self._sees_all_topics:
                log.warning(
                    "The broker at %s hides topics that a user may not describe: this user sees only the "
                    "topics that were granted to it. Without a list of topics, only these are used. Name %s, "
                    "or grant this user Describe on all topics of the group",
                    self.servers,
                    parameter_text("topics", ...),
                )
        return self._sees_all_topics

    def chunks(self, partitions: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
        """
        Split partitions into chunks, one for each request.

        The client is far slower with many partitions in one request, but each request takes a round trip. So
        chunks grow only if every connection has one, and grow much larger only if a round trip takes longer
        than a large chunk.
        """
        most = self.chunk_size * (_FAR_CHUNKS if self.connections.is_far else _NEAR_CHUNKS)
        size = min(most, max(self.chunk_size, -(-len(partitions) // MAX_KEPT)))
        return [partitions[first : first + size] for first in range(0, len(partitions), size)]

    def by_leader(self, partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """
        Sort partitions so that those with the same leader are together.

        The client sends a question about logs to each broker that leads one of the partitions.
        """
        leaders, none = self.leaders, array("i")
        if len(partitions) <= self.chunk_size or not leaders:
            return partitions

        def leader(tp: TopicPartition) -> int:
            known = leaders.get(tp.topic, none)
            return known[tp.partition] if tp.partition < len(known) else -1

        return sorted(partitions, key=leader)


def _sees_offsets_topic(connection: Connection, timeout: float) -> bool:
    try:
        # Before the first commit on a cluster the topic does not exist, which is another response than
        # "hidden".
        read_topics(connection, OFFSETS_TOPIC, timeout)
    except CallError as error:
        if error.failure.code != TOPIC_HIDDEN:
            raise
        return False
    return True


def ask_each(
    connections: Sequence[Connection], tasks: Sequence[K], ask: Callable[[Connection, K], T]
) -> Iterator[tuple[K, T]]:
    """Ask over several connections at once; yield tasks with their results, then raise the first error."""
    if min(len(connections), len(tasks)) < 2:
        for task in tasks:
            yield task, ask(connections[0], task)
        return
    done: list[tuple[K, T]] = []
    todo = iter(tasks)

    def work(connection: Connection) -> None:
        for task in todo:
            done.append((task, ask(connection, task)))  # noqa: PERF401  # keep results before an error

    with ThreadPoolExecutor(len(connections)) as threads:
        futures = [threads.submit(work, connection) for connection in connections]
    # Yield the results that came, even if another request failed.
    yield from done
    for future in futures:
        future.result()
