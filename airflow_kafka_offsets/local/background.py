"""A Kafka that continues to run between two commands."""

from __future__ import annotations

import logging
import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker import find_brokers
from airflow_kafka_offsets.local.broker_config import LOOPBACK, listener_ports
from airflow_kafka_offsets.local.cache import cache_directory, lock_file
from airflow_kafka_offsets.local.kafka import READY_TIMEOUT, EmbeddedKafka
from airflow_kafka_offsets.local.process import end_processes
from airflow_kafka_offsets.local.secured import SecuredKafka, clients_directory
from airflow_kafka_offsets.model.text import plural

log = logging.getLogger(__name__)


class RunningKafka(NamedTuple):
    """A Kafka in the background."""

    bootstrap_servers: str
    pids: list[int]
    """Process ids, one for each broker."""
    directory: Path
    """Configuration, output (``kafka.log``) and data of each broker, in ``broker-N``."""
    clients: Path | None
    """Users' files, see :class:`SecuredKafka`; ``None`` for a Kafka without login."""


def start_background(
    directory: Path | None = None,
    port: int | None = None,
    brokers: int | None = None,
    *,
    secured: bool = False,
) -> RunningKafka:
    """
    Start a Kafka that outlives this process, or return the one that runs in the directory.

    :param directory: for configuration, log and data; default: ``kafka`` in the user's cache directory.
    :param port: port of the first broker; the others get the next ports. Default: the previous ports if they
        are free, else free ports.
    :param brokers: number of brokers; default: as in the directory, else 1.
    :param secured: with TLS, users and ACLs; a directory that already has them keeps them.
    :raises SetupError: if it cannot be started, or the running Kafka has other settings than requested.
    """
    directory = kafka_directory(directory)
    EmbeddedKafka(directory, brokers=brokers or 1, port=port)  # refuses a parameter before anything is made
    # The directory contains a secured Kafka's passwords and keys.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(directory):
        # Under the lock: another command may be starting a Kafka in the same directory.
        configured = len(_configurations(directory))
        if secured and configured and not _clients(directory):
            raise SetupError(
                f"the Kafka in {directory} is open without login, expected one with TLS and users: name "
                "another directory"
            )
        if (found := find_running(directory)) is not None:
            where = f"already runs on {found.bootstrap_servers} (pid {', '.join(map(str, found.pids))})"
            _refuse_other(found, where, configured, port, brokers)
            log.info("Kafka %s", where)
            return found
        # A directory with users keeps them without --secured: an open Kafka on its data would give everyone
        # access to secured data.
        kind = SecuredKafka if secured or _clients(directory) else EmbeddedKafka
        kafka = kind(directory, brokers=brokers or configured or 1, port=port).start()
        # Read the pids before leave_running(): afterwards a broker has no process object.
        pids = [broker.process.pid for broker in kafka.brokers.values()]
        kafka.leave_running()
        return RunningKafka(kafka.bootstrap_servers, pids, directory, _clients(directory))


def _refuse_other(
    found: RunningKafka, where: str, configured: int, port: int | None, brokers: int | None
) -> None:
    """Refuse a running Kafka that lacks one of the brokers in its directory, or is not the requested one."""
    if len(found.pids) < configured:
        raise SetupError(
            f"Kafka {where}, but only {len(found.pids)} of its {configured} brokers: stop it first "
            f"(airflow-kafka-offsets kafka stop --directory {shlex.quote(str(found.directory))}), then start "
            "it again"
        )
    if port is not None and found.bootstrap_servers.partition(",")[0] != f"{LOOPBACK}:{port}":
        raise SetupError(f"Kafka {where}, expected port {port}: stop it first, or use it where it is")
    if brokers not in (None, configured):
        raise SetupError(
            f"Kafka {where} with {plural(configured, 'broker')}, expected {brokers}: name another directory"
        )


def stop_background(directory: Path | None = None) -> bool:
    """Stop the Kafka of a directory; keep its data. Return whether one was running."""
    home = kafka_directory(directory)
    if not _configurations(home) and not find_brokers(home):
        if directory is not None:
            raise SetupError(f"{home} has no Kafka; expected the directory of 'kafka start': correct it")
        return False
    with _lock(home):
        brokers = find_brokers(home)
        end_processes(brokers)
    return bool(brokers)


def find_running(directory: Path | None = None) -> RunningKafka | None:
    """Return the Kafka that runs in a directory, ``None`` if no Kafka runs there."""
    directory = kafka_directory(directory)
    ports = [next(iter(listener_ports(file).values()), None) for file in _configurations(directory)]
    if not ports or None in ports or not (brokers := find_brokers(directory)):
        return None
    servers = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return RunningKafka(servers, [broker.pid for broker in brokers], directory, _clients(directory))


def _clients(directory: Path) -> Path | None:
    clients = clients_directory(directory)
    return clients if clients.exists() else None


def _configurations(directory: Path) -> list[Path]:
    return sorted(directory.glob("broker-*/server.properties"))


def kafka_directory(directory: Path | None) -> Path:
    """Return the directory of a Kafka in the background, by default one in the user's cache."""
    return (directory or cache_directory() / "kafka").resolve()


def _lock(directory: Path) -> AbstractContextManager[None]:
    doing = "starting or stopping this Kafka"
    # The other command may use READY_TIMEOUT for its start, and needs some time before and after it.
    return lock_file(directory / "lock", doing, READY_TIMEOUT + 60)
