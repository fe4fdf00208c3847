"""An embedded Kafka with users and more listeners, which tests may crash, freeze and restart."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil
from deadlines import until

from airflow_kafka_offsets.local.broker import broker_command
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.secured import set_passwords

WITH_USERS = "SASL_PLAINTEXT"


class BreakableKafka(EmbeddedKafka):
    """
    An embedded Kafka with users, and with the troubles of real ones; brokers are named by number, from 1.

    :param users: name -> password. With it there is a second listener, ``sasl_bootstrap_servers``, for
        ``SASL_PLAINTEXT`` with ``SCRAM-SHA-512``; the first one stays open for everybody.
    :param listeners: name -> security protocol of further listeners. Those with TLS need ``ssl.*`` in
        ``properties``; those with SASL take ``SCRAM-SHA-512``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        users: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> None:
        self._users = dict(users or {})
        more = {**({WITH_USERS: WITH_USERS} if users else {}), **(listeners or {})}
        scram = {
            f"listener.name.{name.lower()}.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
            for name, protocol in more.items()
            if protocol.startswith("SASL_")
        }
        super().__init__(
            directory,
            listeners={"PLAINTEXT": "PLAINTEXT", **more},
            properties={
                **({"sasl.enabled.mechanisms": "SCRAM-SHA-512"} if scram else {}),
                **scram,
                **(properties or {}),
            },
            **parameters,
        )

    @property
    def sasl_bootstrap_servers(self) -> str:
        """``host:port`` of the listener for users with a password."""
        return self.servers(WITH_USERS)

    def start(self) -> Self:
        super().start()
        if self._users:
            create_users(self.bootstrap_servers, self._users)
        return self

    def restart(self, broker: int = 1) -> None:
        """Stop a broker if it runs, start it on the same ports and data, and wait until it is ready."""
        self.brokers[broker].end()
        self.start_broker(broker)
        self.wait_until_ready()

    def start_broker(self, broker: int) -> None:
        """Start a broker again on the same ports and data."""
        self.brokers[broker].start(broker_command(self.directory, self._heap))

    def kill(self, broker: int = 1) -> None:
        """End a broker by SIGKILL, as a crash would; its data stays for :meth:`restart`."""
        self.brokers[broker].signal(signal.SIGKILL)
        self.brokers[broker].end()

    def freeze(self, broker: int = 1) -> None:
        """Let a broker be silent, with its connections open (SIGSTOP)."""
        freeze(self.brokers[broker].process.pid)

    def thaw(self, broker: int = 1) -> None:
        """Let a frozen broker continue (SIGCONT)."""
        self.brokers[broker].signal(signal.SIGCONT)


def create_users(bootstrap_servers: str, users: Mapping[str, str]) -> None:
    """Give users (name -> password) a password for SCRAM-SHA-512, replacing one that they have."""
    set_passwords({"bootstrap.servers": bootstrap_servers}, users)


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
