"""A Kafka that keeps running between two commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker import find_brokers
from airflow_kafka_offsets.local.broker_config import LOOPBACK, listener_ports
from airflow_kafka_offsets.local.cache import cache_directory, lock_file
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.kafka import READY_TIMEOUT, EmbeddedKafka
from airflow_kafka_offsets.local.process import end_processes
from airflow_kafka_offsets.local.secured import SecuredKafka, clients_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class RunningKafka(NamedTuple):
    """A Kafka in the background."""

    bootstrap_servers: str
    pids: list[int]
    """One for each broker."""
    directory: Path
    """Configuration, output (``kafka.log``) and data of each broker, in ``broker-N``."""
    clients: Path | None
    """Files of the users, see :class:`SecuredKafka`; ``None`` for a Kafka that is open to everybody."""


def start_background(
    directory: Path | None = None,
    port: int | None = None,
    brokers: int | None = None,
    *,
    secured: bool = False,
    progress: Callable[[str], None] = silent,
) -> RunningKafka:
    """
    Start a Kafka that outlives this process, or return the one that runs in the directory.

    :param directory: configuration, log and data; default: ``kafka`` in the user's cache directory.
    :param port: port of the first broker, and the next ones for the others; default: the previous ones if
        they are free, else free ones.
    :param brokers: number of brokers; default: that of the directory, else 1.
    :param secured: with TLS, users and ACLs; a directory that has them keeps them.
    :raises SetupError: if it cannot be started, or differs from what is wanted.
    """
    directory = _directory(directory)
    # A secured Kafka's passwords and keys are in it.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(directory, progress):
        # Under the lock: another command may be starting a Kafka in the same directory right now.
        there = len(_configurations(directory))
        if (found := find_running(directory)) is not None:
            where = f"already runs on {found.bootstrap_servers} (pid {', '.join(map(str, found.pids))})"
            if port is not None and found.bootstrap_servers.partition(",")[0] != f"{LOOPBACK}:{port}":
                raise SetupError(f"Kafka {where}, expected port {port}: stop it first, or use it where it is")
            if brokers not in (None, there):
                raise SetupError(
                    f"Kafka {where} with {there} brokers, expected {brokers}: name another directory"
                )
            if secured and not found.clients:
                raise _not_secured(directory)
            progress(f"Kafka {where}")
            return found
        if secured and there and not _clients(directory):
            raise _not_secured(directory)
        # A directory that has users keeps them without being asked again: an open Kafka on its data would
        # show everybody what was secured.
        kind = SecuredKafka if secured or _clients(directory) else EmbeddedKafka
        kafka = kind(directory, brokers=brokers or there or 1, port=port, progress=progress).start()
        # Before they are let go: afterwards a broker has no process any more.
        pids = [broker.process.pid for broker in kafka.brokers.values()]
        kafka.leave_running()
        return RunningKafka(kafka.bootstrap_servers, pids, directory, _clients(directory))


def stop_background(directory: Path | None = None) -> bool:
    """Stop the Kafka of a directory; its data stays. Return whether one ran."""
    directory = _directory(directory)
    if not directory.exists():
        return False
    with _lock(directory):
        brokers = find_brokers(directory)
        end_processes(brokers)
    return bool(brokers)


def find_running(directory: Path | None = None) -> RunningKafka | None:
    """Return the Kafka that runs in a directory."""
    directory = _directory(directory)
    ports = [next(iter(listener_ports(file).values()), None) for file in _configurations(directory)]
    if not ports or None in ports or not (brokers := find_brokers(directory)):
        return None
    servers = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return RunningKafka(servers, [broker.pid for broker in brokers], directory, _clients(directory))


def _clients(directory: Path) -> Path | None:
    clients = clients_directory(directory)
    return clients if clients.exists() else None


def _not_secured(directory: Path) -> SetupError:
    return SetupError(
        f"the Kafka in {directory} is open to everybody, expected one with TLS and users: name another "
        "directory"
    )


def _configurations(directory: Path) -> list[Path]:
    return sorted(directory.glob("broker-*/server.properties"))


def _directory(directory: Path | None) -> Path:
    return (directory or cache_directory() / "kafka").absolute()


def _lock(directory: Path, progress: Callable[[str], None] = silent) -> AbstractContextManager[None]:
    doing = "starting or stopping this Kafka"
    # The other command has READY_TIMEOUT itself for its start, and needs some time before and after it.
    return lock_file(directory / "lock", doing, READY_TIMEOUT + 60, progress)
