"""A real Apache Kafka broker on this machine."""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.local import broker_config
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.process import SupervisedProcess, find_process
from airflow_kafka_offsets.local.tools import java_command, run_tool
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    import psutil

READY_TIMEOUT = 120.0
"""Seconds from the start of the process to the first commit; about 5 are usual."""

_ATTEMPT = 5.0
"""Seconds of one attempt. On a fresh broker the first commit may never be answered, a second client's is."""

_READY = "airflow-kafka-offsets-ready"
_MAIN = "kafka.Kafka"
_LOG_LINES = 40
_PORT_ATTEMPTS = 3


class EmbeddedKafka:
    """
    A real Apache Kafka: one KRaft node in a Java process, reachable from this machine only.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. The broker also ends with this
    process, even by SIGKILL, unless :meth:`leave_running` was called. Ctrl-C does not reach it.

    :param directory: for configuration, log and data, which :meth:`stop` keeps. Default: a temporary
        directory, which :meth:`stop` removes.
    :param port: port of the listener; default: that of the last start if it is free, else a free one.
    :param properties: broker properties that are added to, or replace, the default ones.
    :param heap: the Java heap, as in ``-Xmx``.
    :param progress: called with a line of text now and then while jars are fetched and the broker starts.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        progress: Callable[[str], None] = silent,
    ) -> None:
        self._temporary = directory is None
        temporary = Path(tempfile.gettempdir(), f"airflow-kafka-offsets-{secrets.token_hex(8)}")
        self.directory = (directory or temporary).absolute()
        self._given_port = port
        self._port = 0
        self._properties = dict(properties or {})
        self._heap = heap
        self._progress = progress
        self._process: SupervisedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the listener, after the start."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """The broker's Java process."""
        return self._started().pid

    @property
    def log_file(self) -> Path:
        """The broker's output."""
        return self.directory / "kafka.log"

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.status is None

    def start(self) -> Self:
        """
        Start the broker unless it runs, and wait until it takes records and commits.

        :raises SetupError: if it cannot; with the end of the broker's log.
        """
        for attempt in range(_PORT_ATTEMPTS):
            if self.running:
                break
            try:
                self._start()
            except BaseException as error:
                self.stop()
                # Another program was quicker.
                taken = self._given_port is None and "Address already in use" in str(error)
                if not taken or attempt == _PORT_ATTEMPTS - 1:
                    raise
        return self

    def stop(self) -> None:
        """Stop the broker, by SIGKILL if that takes too long, and remove a temporary directory."""
        self._end_process()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def leave_running(self) -> None:
        """Let the broker outlive this process."""
        self._started().leave_running()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def server_properties(self, port: int) -> dict[str, str]:
        """Return the broker's configuration with its client listener on a port."""
        data = self.directory / "data"
        return broker_config.server_properties(port, free_port({port}), data) | self._properties

    def _start(self) -> None:
        self._port = self._choose_port()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        configuration = self.directory / "server.properties"
        properties = broker_config.properties_text(self.server_properties(self._port))
        configuration.write_text(properties, encoding="utf-8")
        options = (_mark(self.directory), f"-Xmx{self._heap}", "-Dlog4j2.level=INFO")
        command = [*java_command(*options, progress=self._progress), _MAIN, str(configuration)]
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(configuration)
        self._progress(f"starting Kafka on {self.bootstrap_servers}")
        self.log_file.write_bytes(b"")
        self._process = SupervisedProcess(command, self.log_file, self.directory)
        if not self._wait_until_ready():
            status = self._process.status
            raise SetupError(f"Kafka ended with status {status} before it was ready{self._log_tail()}")
        self._progress(f"Kafka is ready on {self.bootstrap_servers}")

    def _wait_until_ready(self) -> bool:
        """Wait until a commit is taken, and so a record: a commit is one. ``False``: the broker has ended."""
        deadline, failure = Deadline(READY_TIMEOUT), "there was no time"
        config = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        while self.running:
            if not deadline.left:
                raise SetupError(
                    f"Kafka did not get ready: {self.bootstrap_servers} took no commit within "
                    f"{READY_TIMEOUT:.0f} s ({failure}){self._log_tail()}"
                )
            try:
                # librdkafka would wait longer and longer between its attempts to connect.
                socket.create_connection((LOOPBACK, self._port), timeout=1).close()
                # A client that asked too early may stay confused for long.
                with OffsetsClient(config, timeout=_ATTEMPT) as client:
                    client.commit(_READY, {TopicPartition("__consumer_offsets", 0): 0})
                    client.delete_groups([_READY])
            except (OSError, BrokerError) as error:
                failure = str(error)
                time.sleep(0.05)
            else:
                return True
        return False

    def _choose_port(self) -> int:
        given = self._given_port
        if given and not is_free(given):
            raise SetupError(
                f"port {given} on {LOOPBACK} is taken, expected a free one for Kafka: "
                "stop the program that listens there, or choose another port (by default a free one is found)"
            )
        last = broker_config.listener_port(self.directory / "server.properties")
        return given or (last if last and is_free(last) else free_port())

    def _format(self, configuration: Path) -> None:
        # The form of Kafka's random-uuid: 16 bytes as Base64 for URLs.
        arguments = ("format", "-c", str(configuration), f"--cluster-id={secrets.token_urlsafe(16)}")
        done = run_tool("kafka.tools.StorageTool", *arguments, timeout=READY_TIMEOUT)
        if done.returncode != 0:
            output = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_LINES:])
            raise SetupError(
                f"Kafka refused to format {self.directory / 'data'} (status {done.returncode}): "
                f"correct the property that its output names:\n{output}"
            )

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _started(self) -> SupervisedProcess:
        if self._process is None:
            raise SetupError("this Kafka does not run: call start() first")
        return self._process

    def _log_tail(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        kept = "" if self._temporary else f" ({self.log_file})"
        return f"; the end of its log{kept}:\n" + "\n".join(lines or ["(it is empty)"])


def find_broker(directory: Path) -> psutil.Process | None:
    """Return the Java process of the broker that runs in a directory."""
    return find_process(_mark(directory), _MAIN)


def _mark(directory: Path) -> str:
    return f"-Dairflow_kafka_offsets.directory={directory}"
