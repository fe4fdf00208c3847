"""Consumers that never subscribe: how they are made, asked, kept and closed."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.config import missing_file, scrubber
from airflow_kafka_offsets.kafka.failures import BackgroundErrors, CallError, Failure
from airflow_kafka_offsets.kafka.listener_probe import probe_listener
from airflow_kafka_offsets.model.kafka_security import SERVERS
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import IsolationLevel
from airflow_kafka_offsets.model.parameters import parse_choice

log = logging.getLogger(__name__)

T = TypeVar("T")

OWN_GROUP = "airflow-kafka-offsets"
"""Group of the Consumers that read logs; nothing is ever committed to it."""

MAX_KEPT = 8
"""Consumers that ask at once: each has about four threads, and a socket for each broker."""

_FAR = 0.015
"""Seconds of a response: fewer from a broker that is near, also where 500 partitions were asked for."""

_DEFAULTS = {
    "client.id": OWN_GROUP,
    # A silent broker is given up after this, so that a call can try again, or close, before its deadline.
    "socket.timeout.ms": 10_000,
    # The client also waits for this before its first connection to a broker.
    "reconnect.backoff.ms": 10,
    # A broker that was restarted is found again within a second, not within ten.
    "reconnect.backoff.max.ms": 1_000,
}
# Messages that are taken in at once, at most: a client that reports without end must not hold up the call.
_DRAIN = 20

_Key = tuple[IsolationLevel, int]
"""Isolation level, and number among the connections of this level."""


class Connection:
    """
    One Consumer that never subscribes, and the errors that it reports in the background.

    :param group_id: the only group whose commits it can read and write.
    :raises BrokerError: if the configuration is refused.
    """

    def __init__(self, config: Mapping[str, Any], group_id: str, isolation_level: IsolationLevel) -> None:
        self.scrub = scrubber(config)
        self.background_errors = BackgroundErrors(self.scrub, partial(probe_listener, config))
        self.commit_responses: list[tuple[KafkaError | None, list[ClientPartition]]] = []
        self.fastest = math.inf
        """Seconds of the fastest response so far."""
        self._users_error_cb = config.get("error_cb")
        parse_choice(isolation_level, IsolationLevel, "isolation_level")
        settings = {
            **_DEFAULTS,
            **config,
            "group.id": parse_group(group_id),
            "isolation.level": isolation_level,
            # A Consumer must never commit by itself: close() would commit where it has read.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # A position outside of the log is reported, and not replaced by an end of the log.
            "auto.offset.reset": "error",
            # A question about a mistyped topic must not create it.
            "allow.auto.create.topics": False,
            # Its log goes to standard error; what matters also comes to error_cb.
            "log_level": 0,
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
        }
        try:
            self.consumer = Consumer(settings)
        except (KafkaException, ValueError, TypeError) as error:
            reason = Failure.from_error(error).text if isinstance(error, KafkaException) else str(error)
            text = missing_file(config) or reason
            raise BrokerError(
                f"the client for {config.get(SERVERS)} refused its configuration: {self.scrub(text)}; "
                "correct the Kafka connection, or the file or option that names the broker",
                code="_INVALID_ARG",
            ) from None

    def ask(self, call: Callable[[Consumer], T]) -> T:
        """Make one call; raises :class:`CallError` with the client's error."""
        try:
            return call(self.consumer)
        except KafkaException as error:
            self.drain()
            raise CallError(Failure.from_error(error).scrub(self.scrub)) from None

    def ask_timed(self, call: Callable[[Consumer], T]) -> T:
        """As :meth:`ask`, for a call that waits for a response."""
        began = time.monotonic()
        found = self.ask(call)
        self.fastest = min(self.fastest, time.monotonic() - began)
        return found

    def drain(self, seconds: float = 0.0) -> None:
        """Take in the errors of the background; waits at most ``seconds``."""
        message = self.consumer.poll(seconds)
        for _ in range(_DRAIN):
            if message is None:
                return
            error = message.error()
            if error is not None:
                # Such as a coordinator that must not be asked: the call itself only times out.
                self.background_errors.add_error(error)
            message = self.consumer.poll(0)

    def forget_errors(self) -> bool:
        """
        Forget what was seen in earlier calls and since: it is no cause of what comes.

        :return: whether the connection is still of use. It is not once a login or a right was refused: the
            client reports that only once, or once in 30 seconds, and the next call would only time out.
        """
        self.drain()
        if self.background_errors.fatal is not None:
            return False
        # What is left passes by itself, such as a connection that was closed while it was idle.
        self.background_errors.clear()
        return True

    def _on_error(self, error: KafkaError) -> None:
        self.background_errors.add_error(error)
        if self._users_error_cb is not None:
            try:
                self._users_error_cb(error)
            except Exception:
                log.exception("error_cb of the Kafka configuration failed")

    def _on_commit(self, error: KafkaError | None, partitions: list[ClientPartition]) -> None:
        self.commit_responses.append((error, partitions))


class Connections:
    """Connections of one group that are kept, at most :data:`MAX_KEPT` of an isolation level."""

    def __init__(self, config: Mapping[str, Any], group_id: str = OWN_GROUP) -> None:
        self._config = dict(config)
        self._group_id = group_id
        self._kept: dict[_Key, Connection] = {}
        self._closing: list[threading.Thread] = []

    def get_several(self, requests: int, isolation_level: IsolationLevel) -> list[Connection]:
        """
        Return a connection for each request, at most :data:`MAX_KEPT`.

        A Consumer makes one call at a time, so that over a network each would cost a round trip.
        """
        return [self.get(isolation_level, number) for number in range(min(requests, MAX_KEPT))]

    @property
    def is_far(self) -> bool:
        """Whether no response has come as fast as from a broker that is near."""
        fastest = min((connection.fastest for connection in self._kept.values()), default=math.inf)
        return _FAR < fastest < math.inf

    def get(self, isolation_level: IsolationLevel = "read_uncommitted", number: int = 0) -> Connection:
        """Return a connection, a new one if there is none or the kept one is of no use any more."""
        key = isolation_level, number
        connection = self._kept.get(key)
        if connection is not None and not connection.forget_errors():
            self.discard(connection)
            connection = None
        if connection is None:
            # What it sees from here on are causes of this call, also what it sees before the call begins.
            connection = self._kept[key] = Connection(self._config, self._group_id, isolation_level)
        return connection

    def discard(self, connection: Connection) -> None:
        """Close a connection in the background: with a commit under way this may take a minute."""
        for key in [key for key, kept in self._kept.items() if kept is connection]:
            del self._kept[key]
        # A daemon: Python must not wait for a broker that is away when it ends.
        closing = threading.Thread(target=connection.consumer.close, name="close Kafka client", daemon=True)
        closing.start()
        self._closing = [thread for thread in self._closing if thread.is_alive()] + [closing]

    def close(self, timeout: float) -> None:
        """Close all, and wait at most ``timeout`` seconds for it; the rest ends on its own."""
        for connection in list(self._kept.values()):
            self.discard(connection)
        end = time.monotonic() + timeout
        for thread in self._closing:
            thread.join(max(0.0, end - time.monotonic()))
        self._closing = [thread for thread in self._closing if thread.is_alive()]
