"""A real Apache Kafka broker on this machine."""

from __future__ import annotations

import base64
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerUnavailableError, SetupError
from airflow_kafka_offsets.local import broker_config
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.jars import silent
from airflow_kafka_offsets.local.process import SupervisedProcess, find_process
from airflow_kafka_offsets.local.readiness import wait_until_ready
from airflow_kafka_offsets.local.tools import java_command, run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    import psutil

READY_TIMEOUT = 120.0
"""Seconds from the start of the process to the first commit; about 5 are usual."""

_PORT_ATTEMPTS = 3
_LOG_LINES = 40


class EmbeddedKafka:
    """
    A real Apache Kafka: one KRaft node in a Java process, reachable from this machine only.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. The broker also ends with this
    process, even by SIGKILL, unless :meth:`leave_running` was called. Ctrl-C does not reach it.

    :param directory: for configuration, log and data, which :meth:`stop` keeps. Default: a temporary
        directory, which :meth:`stop` removes.
    :param port: port of the listener; default: that of the last start in ``directory`` if it is free, else a
        free one.
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
        self._directory = Path(directory).absolute() if directory else None
        self._given_port = port
        self._port: int | None = None
        self._properties = dict(properties or {})
        self._heap = heap
        self._progress = progress
        self._process: SupervisedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the listener, after the start."""
        if self._port is None:
            raise SetupError("this Kafka has no address yet: call start() first")
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """The broker's Java process."""
        return self._started().pid

    @property
    def directory(self) -> Path:
        """Directory of configuration, log and data."""
        if self._directory is None:
            raise SetupError("this Kafka has no directory yet: call start() first")
        return self._directory

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

        :raises SetupError: if Java or the jars are missing, the port is taken, or the broker does not get
            ready; with the end of the broker's log.
        """
        if not self.running:
            try:
                self._start()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the broker, by SIGKILL if that takes too long, and remove a temporary directory."""
        self._end_process()
        if self._temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        self._port = None

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
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="airflow-kafka-offsets-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(_PORT_ATTEMPTS):
            self._launch()
            try:
                if wait_until_ready(self.bootstrap_servers, READY_TIMEOUT, lambda: self.running):
                    break
            except BrokerUnavailableError as error:
                raise SetupError(f"Kafka did not get ready: {error}{self._log_tail()}") from error
            status = self._started().wait()
            # Another program may have taken the port between the choice and the start.
            taken = b"Address already in use" in self.log_file.read_bytes()
            if not taken or attempt == _PORT_ATTEMPTS - 1:
                raise SetupError(f"Kafka ended with status {status} before it was ready{self._log_tail()}")
            self._end_process()
        self._progress(f"Kafka is ready on {self.bootstrap_servers}")

    def _launch(self) -> None:
        self._port = self._choose_port()
        configuration, logging = self.directory / "server.properties", self.directory / "log4j2.properties"
        properties = broker_config.properties_text(self.server_properties(self._port))
        configuration.write_text(properties, encoding="utf-8")
        logging.write_text(broker_config.LOG4J, encoding="utf-8")
        options = (_mark(self.directory), f"-Xmx{self._heap}", f"-Dlog4j2.configurationFile={logging}")
        command = [*java_command(*options, progress=self._progress), "kafka.Kafka", str(configuration)]
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(configuration)
        self._progress(f"starting Kafka on {self.bootstrap_servers}")
        self.log_file.write_bytes(b"")
        try:
            self._process = SupervisedProcess(command, self.log_file, self.directory)
        except SetupError as error:
            raise SetupError(f"{error}{self._log_tail()}") from error

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
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ("format", "-c", str(configuration), f"--cluster-id={cluster_id}")
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
    return find_process(_mark(directory))


def _mark(directory: Path) -> str:
    return f"-Dairflow_kafka_offsets.directory={directory}"
