"""How does a Kafka keep running between two commands, and how is it found and stopped later?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, is_free
from airflow_kafka_offsets.local.directories import cache_directory
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.kafka import READY_TIMEOUT, EmbeddedKafka, process_mark
from airflow_kafka_offsets.local.lock import one_at_a_time
from airflow_kafka_offsets.local.process import end_by_pid, is_running

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCK_TIMEOUT = READY_TIMEOUT + 60
_NO_PROCESS = 0


class RunningKafka(NamedTuple):
    """A broker in the background."""

    bootstrap_servers: str
    """``host:port`` for clients."""
    pid: int
    """Its Java process."""
    log_file: Path
    """What it has to say."""
    directory: Path
    """Where its data is, also after it was stopped."""


class _State(NamedTuple):
    """What the state file in the directory says; it stays there after a stop, for the port."""

    pid: int
    port: int


def start_background(
    directory: Path | None = None,
    port: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunningKafka:
    """
    Start a broker that goes on when this process ends; if one runs in the directory, that is it.

    :param directory: configuration, log and data; default: ``kafka`` in the user's cache directory.
    :param port: port of its listener; default: the one it had last time if that is free, else a free one.
    :param progress: called with a line of text now and then.
    :raises SetupError: if it cannot be started, or runs on another port than asked for.
    """
    directory = _directory(directory)
    progress = progress or silent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"Kafka's directory {directory} cannot be made ({error}): choose another one"
        ) from error
    with one_at_a_time(directory / "lock", "starting or stopping this Kafka", _LOCK_TIMEOUT, progress):
        if (found := running(directory)) is not None:
            if port is not None and found.bootstrap_servers != f"{LOOPBACK}:{port}":
                raise SetupError(
                    f"Kafka already runs on {found.bootstrap_servers} (pid {found.pid}), expected port {port}: "
                    "stop it first, or use it where it is"
                )
            progress(f"Kafka already runs on {found.bootstrap_servers} (pid {found.pid})")
            return found
        state = _read(directory)
        if port is None and state is not None and is_free(state.port):
            port = state.port
        kafka = EmbeddedKafka(directory, port=port, progress=progress).start()
        try:
            started = RunningKafka(kafka.bootstrap_servers, kafka.pid, kafka.log_file, directory)
            _write(directory, _State(kafka.pid, int(kafka.bootstrap_servers.rpartition(":")[2])))
        except BaseException:
            kafka.stop()
            raise
        # Only now, so that nothing is left behind if this process ends before.
        kafka.leave_running()
        return started


def stop_background(directory: Path | None = None) -> bool:
    """
    Stop the broker that was started in a directory; its data stays.

    :param directory: as for :func:`start_background`.
    :return: whether one ran.
    """
    directory = _directory(directory)
    if _read(directory) is None:
        return False
    with one_at_a_time(directory / "lock", "starting or stopping this Kafka", _LOCK_TIMEOUT):
        state = _read(directory)
        if state is None or not end_by_pid(state.pid, process_mark(directory)):
            return False
        _write(directory, state._replace(pid=_NO_PROCESS))
    return True


def running(directory: Path | None = None) -> RunningKafka | None:
    """
    Find the broker that runs in a directory.

    :param directory: as for :func:`start_background`.
    :return: ``None`` if there is none. A pid that now belongs to another program does not count.
    """
    directory = _directory(directory)
    state = _read(directory)
    if state is None or state.pid == _NO_PROCESS or not is_running(state.pid, process_mark(directory)):
        return None
    return RunningKafka(f"{LOOPBACK}:{state.port}", state.pid, directory / "kafka.log", directory)


def _directory(directory: Path | None) -> Path:
    return (directory or cache_directory() / "kafka").absolute()


def _read(directory: Path) -> _State | None:
    try:
        state = json.loads((directory / "running.json").read_text(encoding="utf-8"))
        return _State(pid=int(state["pid"]), port=int(state["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Never written, or by somebody else: then nothing is known to run.
        return None


def _write(directory: Path, state: _State) -> None:
    draft = directory / "running.json.new"
    draft.write_text(json.dumps({"version": 1, **state._asdict()}) + "\n", encoding="utf-8")
    draft.replace(directory / "running.json")
