"""Creates, uses, keeps and closes Consumers that never subscribe."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.config import scrubber, unusable_setting
from airflow_kafka_offsets.kafka.failures import BackgroundErrors, CallError, Failure
from airflow_kafka_offsets.kafka.listener_probe import find_cause
from airflow_kafka_offsets.kafka.oauth_token import get_token
from airflow_kafka_offsets.model.broker_addresses import SERVERS
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import IsolationLevel
from airflow_kafka_offsets.model.parameters import parse_choice

log = logging.getLogger(__name__)

T = TypeVar("T")

OWN_GROUP = "airflow-kafka-offsets"
"""Group of the Consumers that read logs; they never commit to it."""

MAX_KEPT = 8
"""Maximum number of Consumers used in parallel: each has about four threads, and a socket for each broker."""

_FAR = 0.015
"""Seconds of a response: a broker in the same network is faster, even for 500 partitions."""

DEFAULTS = {
    "client.id": OWN_GROUP,
    # A name may have an address that does not answer: the client tries the next one only after this time, 30
    # seconds by default. This is the default of Kafka's Java clients.
    "socket.connection.setup.timeout.ms": 10_000,
    # Seconds until a silent broker is given up, so that a call can retry, or close, before its deadline.
    "socket.timeout.ms": 10_000,
    # The client also waits this long before its first connection to a broker.
    "reconnect.backoff.ms": 10,
    # A restarted broker is found within a second, not within ten.
    "reconnect.backoff.max.ms": 1_000,
}
# Maximum number of messages read at once: a client that reports errors endlessly must not block the call.
_DRAIN = 20


class Connection:
    """
    A Consumer that never subscribes, and the errors that it reports in the background.

    :param group_id: the only group whose commits it can read and write; ``None`` to read logs only.
    :raises BrokerError: if the configuration is refused, or its ``oauth_cb`` returns no token.
    """

    def __init__(
        self, config: Mapping[str, Any], group_id: str | None, isolation_level: IsolationLevel
    ) -> None:
        self.scrub = scrubber(config)
        self.background_errors = BackgroundErrors(self.scrub, partial(find_cause, config))
        self.commit_responses: list[tuple[KafkaError | None, list[ClientPartition]]] = []
        self.fastest = math.inf
        """Seconds of the fastest response about logs so far."""
        self.cluster_id = ""
        """Cluster of the last response about topics; empty if it is not known."""
        self._users_error_cb = config.get("error_cb")
        self._reads_logs = group_id is None
        parse_choice(isolation_level, IsolationLevel, "isolation_level")
        settings = {
            **DEFAULTS,
            **config,
            "group.id": OWN_GROUP if group_id is None else parse_group(group_id),
            "isolation.level": isolation_level,
            # A Consumer must never commit automatically: close() would commit the position that it has read
            # to.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Report a position outside of the log instead of moving it to an end of the log.
            "auto.offset.reset": "error",
            # Asking for a mistyped topic must not create it.
            "allow.auto.create.topics": False,
            # The log goes to standard error; errors that matter are also passed to error_cb.
            "log_level": 0,
            "error_cb": self._on_error,
            "on_commit": lambda *response: self.commit_responses.append(response),
        }
        if (token := get_token(config)) is not None:
            # The client would wait ten seconds for the token of a function that raises an error.
            tokens = chain([token], iter(partial(get_token, config), None))
            settings["oauth_cb"] = lambda _: tuple(next(tokens))
        try:
            self.consumer = Consumer(settings)
        except (KafkaException, ValueError, TypeError) as error:
            reason = Failure.from_error(error).text if isinstance(error, KafkaException) else str(error)
            text = unusable_setting(config) or reason
            raise BrokerError(
                f"the client for {config.get(SERVERS)} refused its configuration: {self.scrub(text)}; "
                "correct the Kafka connection, or the file or option that names the broker",
                code="_INVALID_ARG",
            ) from None

    def ask(self, call: Callable[[Consumer], T]) -> T:
        """Make one call; raise :class:`CallError` with the client's error."""
        try:
            return call(self.consumer)
        except KafkaException as error:
            self.drain()
            raise CallError(Failure.from_error(error).scrub(self.scrub)) from None

    def drain(self, seconds: float = 0.0) -> None:
        """Collect the background errors; wait at most ``seconds``."""
        message = self.consumer.poll(seconds)
        for _ in range(_DRAIN):
            if message is None:
                return
            error = message.error()
            if error is not None:
                # For example a coordinator that the user may not use: the call itself only times out.
                self.add_error(error)
            message = self.consumer.poll(0)

    def add_error(self, error: KafkaError) -> None:
        """Add an error that the client reports in the background."""
        # The client asks for the coordinator of its group, but logs are read without a right on any group.
        if not (self._reads_logs and error.name() == "GROUP_AUTHORIZATION_FAILED"):
            self.background_errors.add_error(error)

    def forget_errors(self) -> bool:
        """
        Forget the errors of earlier calls: they are not causes of later failures.

        :return: whether the connection can still be used. It cannot after a login or a right was refused: the
            client reports a refusal only once, or once in 30 seconds, so the next call would only time out.
        """
        self.drain()
        if self.background_errors.fatal is not None:
            return False
        # The remaining errors are temporary, such as a connection that was closed while idle.
        self.background_errors.clear()
        return True

    def _on_error(self, error: KafkaError) -> None:
        self.add_error(error)
        if self._users_error_cb is not None:
            try:
                self._users_error_cb(error)
            except Exception:
                log.exception("error_cb of the Kafka configuration failed")


class Connections:
    """Open connections to read logs, or of one group, at most :data:`MAX_KEPT` for each isolation level."""

    def __init__(self, config: Mapping[str, Any], group_id: str | None = None) -> None:
        self._config = dict(config)
        self._group_id = group_id
        # The key also has the index among the connections of the isolation level.
        self._kept: dict[tuple[IsolationLevel, int], Connection] = {}
        self._closing: list[threading.Thread] = []

    def get_several(self, requests: int, isolation_level: IsolationLevel) -> list[Connection]:
        """
        Return an open connection for each request, at most :data:`MAX_KEPT`; create those that are missing.

        A Consumer makes one call at a time: over one connection, each request would cost another round trip.
        """
        keys = [(isolation_level, number) for number in range(min(requests, MAX_KEPT))]
        for key in keys:
            connection = self._kept.get(key)
            if connection is not None and not connection.forget_errors():
                self.discard(connection)

        def create(key: tuple[IsolationLevel, int]) -> None:
            # Errors that the new connection reports from now on are causes of this call's failure, even
            # before it begins.
            self._kept[key] = Connection(self._config, self._group_id, isolation_level)

        if missing := [key for key in keys if key not in self._kept]:
            # At once: with an oauth_cb each Consumer waits a second for its token.
            with ThreadPoolExecutor(len(missing)) as threads:
                list(threads.map(create, missing))
        return [self._kept[key] for key in keys]

    def get(self, isolation_level: IsolationLevel = "read_uncommitted") -> Connection:
        """Return an open connection; create one if no usable connection is open."""
        (connection,) = self.get_several(1, isolation_level)
        return connection

    @property
    def cluster_ids(self) -> set[str]:
        """The clusters that the connections lead to, as far as they are known."""
        # A copy: another thread may open connections.
        return {connection.cluster_id for connection in [*self._kept.values()]} - {""}

    @property
    def is_far(self) -> bool:
        """Whether no response was as fast as a response from the same network."""
        fastest = min((connection.fastest for connection in self._kept.values()), default=math.inf)
        return _FAR < fastest < math.inf

    def discard(self, connection: Connection) -> None:
        """Close a connection in the background: while a commit is pending this may take a minute."""
        self._kept = {key: kept for key, kept in self._kept.items() if kept is not connection}
        # A daemon thread: Python must not wait at its end for an unreachable broker.
        closing = threading.Thread(target=connection.consumer.close, name="close Kafka client", daemon=True)
        closing.start()
        self._closing = [thread for thread in self._closing if thread.is_alive()] + [closing]

    def close(self, timeout: float) -> None:
        """Close all connections, and wait at most ``timeout`` seconds; the others close in the background."""
        for connection in list(self._kept.values()):
            self.discard(connection)
        end = time.monotonic() + timeout
        for thread in self._closing:
            thread.join(max(0.0, end - time.monotonic()))
        self._closing = [thread for thread in self._closing if thread.is_alive()]
