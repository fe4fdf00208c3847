"""A Kafka that keeps running between two commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, listener_port
from airflow_kafka_offsets.local.cache import cache_directory, one_at_a_time
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.kafka import READY_TIMEOUT, EmbeddedKafka, find_broker
from airflow_kafka_offsets.local.process import end_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class RunningKafka(NamedTuple):
    """A broker in the background."""

    bootstrap_servers: str
    pid: int
    log_file: Path
    directory: Path


def start_background(
    directory: Path | None = None, port: int | None = None, progress: Callable[[str], None] = silent
) -> RunningKafka:
    """
    Start a broker that outlives this process, or return the one that runs in the directory.

    :param directory: configuration, log and data; default: ``kafka`` in the user's cache directory.
    :param port: port of its listener; default: the previous one if that is free, else a free one.
    :raises SetupError: if it cannot be started, or runs on another port.
    """
    directory = _directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory, progress):
        if (found := running(directory)) is not None:
            where = f"already runs on {found.bootstrap_servers} (pid {found.pid})"
            if port is not None and found.bootstrap_servers != f"{LOOPBACK}:{port}":
                raise SetupError(f"Kafka {where}, expected port {port}: stop it first, or use it where it is")
            progress(f"Kafka {where}")
            return found
        kafka = EmbeddedKafka(directory, port=port, progress=progress).start()
        started = RunningKafka(kafka.bootstrap_servers, kafka.pid, kafka.log_file, directory)
        kafka.leave_running()
        return started


def stop_background(directory: Path | None = None) -> bool:
    """Stop the broker of a directory; its data stays. Return whether one ran."""
    directory = _directory(directory)
    if not directory.exists():
        return False
    with _lock(directory):
        if (broker := find_broker(directory)) is None:
            return False
        end_process(broker)
    return True


def running(directory: Path | None = None) -> RunningKafka | None:
    """Return the broker that runs in a directory."""
    directory = _directory(directory)
    port = listener_port(directory / "server.properties")
    if port is None or (broker := find_broker(directory)) is None:
        return None
    return RunningKafka(f"{LOOPBACK}:{port}", broker.pid, directory / "kafka.log", directory)


def _directory(directory: Path | None) -> Path:
    return (directory or cache_directory() / "kafka").absolute()


def _lock(directory: Path, progress: Callable[[str], None] = silent) -> AbstractContextManager[None]:
    doing = "starting or stopping this Kafka"
    return one_at_a_time(directory / "lock", doing, READY_TIMEOUT + 60, progress)
