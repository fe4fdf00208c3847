"""The connections, the time limits and the lock that all calls of one client share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka.config import SERVERS, client_config
from airflow_kafka_offsets.kafka.connection import Connection, Connections
from airflow_kafka_offsets.kafka.explain import Call, Right
from airflow_kafka_offsets.kafka.failures import Failed
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.parameters import parse_seconds

T = TypeVar("T")

LONGEST_TIMEOUT = 3_600.0
"""Seconds that one call may take at most."""

_CLOSE = 3.0
_LEAST = 0.1
_IN_FLIGHT = 16
"""Requests of one question that are under way together: over a network each costs a round trip."""


class Session:
    """What the calls of one :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` share."""

    def __init__(
        self, config: Mapping[str, Any], *, timeout: float, total: float | None, chunk_size: int
    ) -> None:
        if chunk_size < 1:
            raise UsageError(f"chunk_size={chunk_size}: expected 1 or more")
        self.config = client_config(config)
        self.servers = str(self.config[SERVERS])
        self.timeout = parse_seconds(timeout, "timeout", most=LONGEST_TIMEOUT, zero=False) or 30.0
        self.chunk_size = chunk_size
        self.connections = Connections(self.config)
        self._total = self._left = math.inf if total is None else total
        self._lock = threading.RLock()
        self._closed = False

    def close(self) -> None:
        """Close all connections; waits a few seconds at most. A running call closes them when it ends."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self.connections.close(_CLOSE)
            finally:
                self._lock.release()

    @contextmanager
    def calling(self, what: str, timeout: float | None = None) -> Iterator[Call]:
        """Begin a call, and take its time off what all calls together have."""
        if self._left < _LEAST:
            raise BrokerUnavailableError(
                f"{what}: the calls before it have taken all of the {self._total:g} s for all of them: see "
                "why the broker answers slowly, then try again"
            )
        timeout = timeout or self.timeout
        start = time.monotonic()
        try:
            yield Call(what, self.servers, timeout if timeout <= self._left else round(self._left, 1))
        finally:
            self._left -= time.monotonic() - start

    @contextmanager
    def alone(self, call: Call) -> Iterator[None]:
        """Keep out the calls of other threads, and all calls after the client was closed."""
        if not self._lock.acquire(timeout=call.left):
            raise BrokerUnavailableError(
                f"{call.what}: another call of this client took all of {call.timeout:g} s: try again, or use "
                "two clients"
            )
        try:
            if self._closed:
                raise UsageError(f"{call.what}: this client was closed; make a new one")
            yield
        finally:
            if self._closed:
                self.connections.close(0)
            self._lock.release()

    @contextmanager
    def asking(self, what: str) -> Iterator[Call]:
        """Begin a call that uses the connections."""
        with self.calling(what) as call, self.alone(call):
            yield call

    def ask(
        self,
        call: Call,
        question: Callable[[Connection, float], T],
        connection: Connection | None = None,
        needs: Right = "Describe",
    ) -> T:
        """Ask until there is an answer; ``question`` makes one attempt, in so many seconds."""
        connection = connection or self.connections.get()
        # The causes of errors in earlier calls are not causes of this one's.
        connection.drain()
        connection.causes.clear()
        try:
            return until(call, lambda timeout: question(connection, timeout), lambda: connection.causes)
        except Failed as error:
            if connection.causes.final is not None:
                # The client reports some of them only once, such as a coordinator that must not be asked.
                self.connections.discard(connection)
            raise call.explain(error.failure, needs, connection.causes) from None

    def in_chunks(
        self, partitions: Sequence[TopicPartition], ask: Callable[[Sequence[TopicPartition]], T]
    ) -> Iterator[T]:
        """Ask for partitions in several requests, which do not wait for one another; in their order."""
        size = self.chunk_size
        chunks = [partitions[first : first + size] for first in range(0, len(partitions), size)]
        if len(chunks) < 2:
            yield from map(ask, chunks)
            return
        with ThreadPoolExecutor(min(len(chunks), _IN_FLIGHT)) as threads:
            for future in [threads.submit(ask, chunk) for chunk in chunks]:
                yield future.result()
