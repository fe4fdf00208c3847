"""How does one get a real Kafka broker of one's own on this machine, and get rid of it again?"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from airflow_kafka_offsets.errors import BrokerUnavailableError, SetupError
from airflow_kafka_offsets.local import broker_config
from airflow_kafka_offsets.local.broker_config import LOOPBACK, Ports
from airflow_kafka_offsets.local.jars import classpath_text, kafka_classpath, silent
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.process import SupervisedProcess, freeze
from airflow_kafka_offsets.local.readiness import wait_until_ready
from airflow_kafka_offsets.local.users import create_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

READY_TIMEOUT = 120.0
"""Seconds from the start of the process to the first commit; about 5 are usual."""

_PORT_ATTEMPTS = 3
_LOG_LINES = 40
_WITH_USERS = "SASL_PLAINTEXT"


class EmbeddedKafka:
    """
    A real Apache Kafka: one KRaft node, a Java process of its own, reachable from this machine only.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. The process also ends when this
    one does, even by SIGKILL, unless :meth:`leave_running` was called. Ctrl-C does not reach it: who
    started it stops it.

    :param directory: where configuration, log and data are kept, also after :meth:`stop`. Default: a
        temporary directory, which :meth:`stop` removes.
    :param properties: broker properties added to or replacing those of
        :func:`~airflow_kafka_offsets.local.broker_config.server_properties`.
    :param users: name -> password. With it there is a second listener, ``sasl_bootstrap_servers``, for
        ``SASL_PLAINTEXT`` with ``SCRAM-SHA-512``; the first one stays open for everybody.
    :param listeners: name -> security protocol of further listeners, see :meth:`servers`. Those with TLS need
        ``ssl.*`` in ``properties``; those with SASL take ``SCRAM-SHA-512``.
    :param port: port of the listener; default: a free one.
    :param heap: the Java heap, as in ``-Xmx``.
    :param progress: called with a line of text now and then while jars are fetched and the broker starts.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        port: int | None = None,
        heap: str = "512m",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._given_directory = Path(directory).absolute() if directory is not None else None
        self._directory: Path | None = self._given_directory
        self._properties = dict(properties or {})
        self._users = dict(users or {})
        self._listeners = {**({_WITH_USERS: _WITH_USERS} if users else {}), **(listeners or {})}
        self._given_port = port
        self._heap = heap
        self._progress = progress or silent
        self._ports: Ports | None = None
        self._process: SupervisedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the listener that everybody may use; known once it was started."""
        return f"{LOOPBACK}:{self._known_ports().plain}"

    @property
    def sasl_bootstrap_servers(self) -> str:
        """``host:port`` of the listener for users with a password."""
        if _WITH_USERS not in self._listeners:
            raise SetupError("this Kafka has no listener for users: give it users={'name': 'password'}")
        return self.servers(_WITH_USERS)

    def servers(self, listener: str) -> str:
        """Return ``host:port`` of one of the ``listeners``."""
        return f"{LOOPBACK}:{self._known_ports().others[listener]}"

    @property
    def pid(self) -> int:
        """The broker's Java process."""
        return self._started_process().pid

    @property
    def directory(self) -> Path:
        """Where configuration, log and data are."""
        if self._directory is None:
            raise SetupError("this Kafka has no directory yet: call start() first")
        return self._directory

    @property
    def log_file(self) -> Path:
        """What the broker has to say."""
        return self.directory / "kafka.log"

    @property
    def running(self) -> bool:
        """Whether the process that was started has not ended."""
        return self._process is not None and self._process.status is None

    def start(self) -> Self:
        """
        Start the broker and wait until it takes records and commits. Does nothing if it runs.

        :raises SetupError: if Java or the jars are missing, the port is taken, or the broker does not get
            ready; with the end of the broker's log.
        """
        if self.running:
            return self
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker in order, or by SIGKILL if that takes too long, and remove a temporary directory."""
        self._end_process()
        if self._given_directory is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same ports and data."""
        self._end_process()
        self._start()

    def kill(self) -> None:
        """End the broker by SIGKILL, as a crash would; its data stays for :meth:`restart`."""
        self._started_process().kill()
        self._process = None

    def freeze(self) -> None:
        """Let the broker be silent, with its connections open (SIGSTOP)."""
        freeze(self.pid)

    def thaw(self) -> None:
        """Let a frozen broker go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def leave_running(self) -> None:
        """Let the broker outlive this process; only its pid, signals and its port remain to reach it."""
        self._started_process().leave_running()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        java = find_java().path
        classpath = classpath_text(kafka_classpath(self._progress))
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="airflow-kafka-offsets-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(_PORT_ATTEMPTS):
            self._ports = self._choose_ports()
            self._write_configuration()
            self._format(java, classpath)
            self._launch(java, classpath)
            try:
                if wait_until_ready(self.bootstrap_servers, READY_TIMEOUT, lambda: self.running):
                    break
            except BrokerUnavailableError as error:
                raise SetupError(f"Kafka did not get ready: {error}{self._log_tail()}") from error
            status = self._started_process().wait()
            # Somebody else may have taken a port between the choice and the start.
            if "Address already in use" not in self._log_text() or attempt == _PORT_ATTEMPTS - 1:
                raise SetupError(f"Kafka ended with status {status} before it was ready{self._log_tail()}")
            self._end_process()
            self._ports = None
        if self._users:
            self._create_users()
        self._progress(f"Kafka is ready on {self.bootstrap_servers}")

    def _choose_ports(self) -> Ports:
        if self._ports is not None:
            return self._ports
        if self._given_port is not None and not broker_config.is_free(self._given_port):
            raise SetupError(
                f"port {self._given_port} on {LOOPBACK} is taken, expected a free one for Kafka: "
                "stop what listens there, or choose another port (by default a free one is found)"
            )
        return broker_config.choose_ports(self._given_port, self._listeners)

    def _write_configuration(self) -> None:
        properties = broker_config.server_properties(
            self._known_ports(), self._listeners, self.directory / "data", self._properties
        )
        text = broker_config.properties_text(properties)
        (self.directory / "server.properties").write_text(text, encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(broker_config.LOG4J, encoding="utf-8")

    def _format(self, java: Path, classpath: str) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        configuration = str(self.directory / "server.properties")
        program = [*self._java(java, classpath), "kafka.tools.StorageTool", "format"]
        answer = subprocess.run(
            [*program, f"--cluster-id={cluster_id}", "-c", configuration],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT,
            check=False,
        )
        if answer.returncode != 0:
            said = "\n".join((answer.stdout + answer.stderr).splitlines()[-_LOG_LINES:])
            raise SetupError(
                f"Kafka refused to format {self.directory / 'data'} (status {answer.returncode}): "
                f"look for a wrong property in what it said:\n{said}"
            )

    def _launch(self, java: Path, classpath: str) -> None:
        self._progress(f"starting Kafka on {self.bootstrap_servers}")
        self.log_file.write_bytes(b"")
        command = [*self._java(java, classpath), "kafka.Kafka", str(self.directory / "server.properties")]
        try:
            self._process = SupervisedProcess(command, self.log_file, self.directory)
        except SetupError as error:
            raise SetupError(f"{error}{self._log_tail()}") from error

    def _java(self, java: Path, classpath: str) -> list[str]:
        return [
            str(java),
            f"-Xmx{self._heap}",
            # The fast compiler only, and a simple collector: ready sooner, smaller.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            process_mark(self.directory),
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            classpath,
        ]

    def _create_users(self) -> None:
        # Not through the storage tool: passwords on its command line could be read by anybody.
        try:
            create_users(self.bootstrap_servers, self._users)
        except KafkaException as error:
            raise SetupError(f"Kafka did not take the users {sorted(self._users)}: {error}") from error

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _started_process(self) -> SupervisedProcess:
        if self._process is None:
            raise SetupError("this Kafka does not run: call start() first")
        return self._process

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise SetupError("this Kafka has no address yet: call start() first")
        return self._ports

    def _log_text(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def _log_tail(self) -> str:
        lines = self._log_text().splitlines()[-_LOG_LINES:]
        kept = f" ({self.log_file})" if self._given_directory is not None else ""
        return f"; the end of its log{kept}:\n" + "\n".join(lines or ["(it is empty)"])


def process_mark(directory: Path) -> str:
    """Argument by which the Java process of the broker in ``directory`` is told from any other."""
    return f"-Dairflow_kafka_offsets.directory={directory}"
