"""A Kafka that keeps running between two commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, is_free
from airflow_kafka_offsets.local.cache import cache_directory, one_at_a_time
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.kafka import READY_TIMEOUT, EmbeddedKafka, process_mark
from airflow_kafka_offsets.local.process import end_by_pid, is_running

if TYPE_CHECKING:
    from collections.abc import Callable

_DOING = "starting or stopping this Kafka"
_LOCK_TIMEOUT = READY_TIMEOUT + 60


class RunningKafka(NamedTuple):
    """A broker in the background."""

    bootstrap_servers: str
    pid: int
    log_file: Path
    directory: Path


def start_background(
    directory: Path | None = None, port: int | None = None, progress: Callable[[str], None] | None = None
) -> RunningKafka:
    """
    Start a broker that outlives this process, or return the one that runs in the directory.

    :param directory: configuration, log and data; default: ``kafka`` in the user's cache directory.
    :param port: port of its listener; default: the previous one if that is free, else a free one.
    :raises SetupError: if it cannot be started, or runs on another port.
    """
    directory, progress = _directory(directory), progress or silent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"Kafka's directory {directory} cannot be created ({error}): choose another one"
        ) from error
    with one_at_a_time(directory / "lock", _DOING, _LOCK_TIMEOUT, progress):
        if (found := running(directory)) is not None:
            where = f"already runs on {found.bootstrap_servers} (pid {found.pid})"
            if port is not None and found.bootstrap_servers != f"{LOOPBACK}:{port}":
                raise SetupError(f"Kafka {where}, expected port {port}: stop it first, or use it where it is")
            progress(f"Kafka {where}")
            return found
        _, previous = _read(directory)
        if port is None and previous and is_free(previous):
            port = previous
        kafka = EmbeddedKafka(directory, port=port, progress=progress).start()
        try:
            started = RunningKafka(kafka.bootstrap_servers, kafka.pid, kafka.log_file, directory)
            _write(directory, kafka.pid, int(kafka.bootstrap_servers.rpartition(":")[2]))
        except BaseException:
            kafka.stop()
            raise
        # Last, so that nothing is left behind if this process ends before.
        kafka.leave_running()
        return started


def stop_background(directory: Path | None = None) -> bool:
    """Stop the broker of a directory; its data stays. Return whether one ran."""
    directory = _directory(directory)
    if not _read(directory)[0]:
        return False
    with one_at_a_time(directory / "lock", _DOING, _LOCK_TIMEOUT):
        pid, port = _read(directory)
        if not pid or not end_by_pid(pid, process_mark(directory)):
            return False
        _write(directory, 0, port)
    return True


def running(directory: Path | None = None) -> RunningKafka | None:
    """Return the broker that runs in a directory; a pid that another program has now does not count."""
    directory = _directory(directory)
    pid, port = _read(directory)
    if not pid or not is_running(pid, process_mark(directory)):
        return None
    return RunningKafka(f"{LOOPBACK}:{port}", pid, directory / "kafka.log", directory)


def _directory(directory: Path | None) -> Path:
    return (directory or cache_directory() / "kafka").absolute()


def _read(directory: Path) -> tuple[int, int]:
    """Return pid and port; pid 0: nothing runs, and the port is that of the previous start."""
    try:
        state = json.loads((directory / "running.json").read_text(encoding="utf-8"))
        return int(state["pid"]), int(state["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0


def _write(directory: Path, pid: int, port: int) -> None:
    draft = directory / "running.json.new"
    draft.write_text(json.dumps({"version": 1, "pid": pid, "port": port}) + "\n", encoding="utf-8")
    draft.replace(directory / "running.json")
