"""An embedded Kafka with users and more listeners, which tests may crash, freeze and restart."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from deadlines import until

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

WITH_USERS = "SASL_PLAINTEXT"
ITERATIONS = 4096  # the least that Kafka accepts
TIMEOUT = 30.0


class BreakableKafka(EmbeddedKafka):
    """
    An embedded Kafka with more listeners, and with the troubles of real ones.

    :param users: name -> password. With it there is a second listener, ``sasl_bootstrap_servers``, for
        ``SASL_PLAINTEXT`` with ``SCRAM-SHA-512``; the first one stays open for everybody.
    :param listeners: name -> security protocol of further listeners, see :meth:`servers`. Those with TLS need
        ``ssl.*`` in ``properties``; those with SASL take ``SCRAM-SHA-512``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        users: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(directory, **parameters)
        self._users = dict(users or {})
        self._listeners = {**({WITH_USERS: WITH_USERS} if users else {}), **(listeners or {})}
        self._ports: dict[str, int] = {}

    @property
    def sasl_bootstrap_servers(self) -> str:
        """``host:port`` of the listener for users with a password."""
        return self.servers(WITH_USERS)

    def servers(self, listener: str) -> str:
        """Return ``host:port`` of one of the ``listeners``."""
        return f"{LOOPBACK}:{self._ports[listener]}"

    def start(self) -> Self:
        super().start()
        if self._users:
            create_users(self.bootstrap_servers, self._users)
        return self

    def server_properties(self, port: int) -> dict[str, str]:
        # A restart keeps the ports.
        for name in self._listeners:
            self._ports.setdefault(name, free_port({port, *self._ports.values()}))
        properties = super().server_properties(port)
        more = "".join(f",{name}://{self.servers(name)}" for name in self._listeners)
        protocols = "".join(f",{name}:{protocol}" for name, protocol in self._listeners.items())
        properties["listeners"] += more
        properties["advertised.listeners"] += more
        properties["listener.security.protocol.map"] += protocols
        for name, protocol in self._listeners.items():
            if protocol.startswith("SASL_"):
                properties["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
                properties[f"listener.name.{name.lower()}.scram-sha-512.sasl.jaas.config"] = (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                )
        return properties

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same ports and data."""
        self._end_process()
        self._start()

    def kill(self) -> None:
        """End the broker by SIGKILL, as a crash would; its data stays for :meth:`restart`."""
        os.kill(self.pid, signal.SIGKILL)
        self._end_process()

    def freeze(self) -> None:
        """Let the broker be silent, with its connections open (SIGSTOP)."""
        freeze(self.pid)

    def thaw(self) -> None:
        """Let a frozen broker continue (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)


def create_users(bootstrap_servers: str, users: Mapping[str, str]) -> None:
    """Give users (name -> password) a password for SCRAM-SHA-512, replacing one that they have."""
    method = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    answers = client.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(name, method, password.encode()) for name, password in users.items()],
        request_timeout=TIMEOUT,
    )
    for answer in answers.values():
        answer.result(TIMEOUT)


def freeze(pid: int, timeout: float = 5.0) -> None:
    """Stop a process, and return once all of it has stopped: SIGSTOP reaches threads one by one."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _has_stopped(pid), "all threads to stop", timeout, tick=0.01)


def _has_stopped(pid: int) -> bool:
    try:
        # On Linux each thread can be asked by its own id.
        threads = [thread.id for thread in psutil.Process(pid).threads()] if psutil.LINUX else [pid]
        return all(psutil.Process(thread).status() == psutil.STATUS_STOPPED for thread in threads)
    except psutil.NoSuchProcess:
        # A thread that just ended; the others have not all stopped yet.
        return False
