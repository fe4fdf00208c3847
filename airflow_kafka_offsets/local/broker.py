"""One broker of the embedded Kafka: its files and its Java process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import properties_text, write_private
from airflow_kafka_offsets.local.jars import kafka_classpath
from airflow_kafka_offsets.local.process import SupervisedProcess, find_processes
from airflow_kafka_offsets.local.tools import java_command

if TYPE_CHECKING:
    import psutil

_MAIN = "kafka.Kafka"


class Broker:
    """A broker, which is also a controller, of the Kafka in a directory; its number is its node id."""

    def __init__(self, home: Path, number: int) -> None:
        self.number = number
        self.directory = home / f"broker-{number}"
        self.configuration = self.directory / "server.properties"
        self.data = self.directory / "data"
        self.log_file = self.directory / "kafka.log"
        self._process: SupervisedProcess | None = None

    @property
    def process(self) -> SupervisedProcess:
        """The process of the last start; raises a SetupError before the first start."""
        if self._process is None:
            raise SetupError("this Kafka does not run: call start() first")
        return self._process

    @property
    def started(self) -> bool:
        """Whether the broker was started and not stopped or left running; its process may have ended."""
        return self._process is not None

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.status is None

    def cluster_id(self) -> str | None:
        """Return the cluster id in its data; ``None`` without data."""
        file = self.data / "meta.properties"
        found = file.exists() and re.search(
            r"^cluster\.id=(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE
        )
        return found[1] if found else None

    def configure(self, properties: Mapping[str, str]) -> None:
        """Write the configuration for the next start."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The configuration may contain passwords of key files.
        write_private(self.configuration, properties_text(properties).encode())

    def start(self, command: list[str]) -> None:
        """Start the process with a Java command up to the class, see :func:`broker_command`."""
        self.log_file.write_bytes(b"")
        command = [*command, _MAIN, str(self.configuration)]
        self._process = SupervisedProcess(command, self.log_file, self.directory)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def end(self) -> None:
        """End the process, with SIGKILL if it takes too long."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def leave_running(self) -> None:
        """Let the broker outlive this process."""
        self.process.leave_running()
        self._process = None


def broker_command(home: Path, heap: str) -> list[str]:
    """Return the command for the brokers of the Kafka in a directory, up to the class."""
    return java_command(kafka_classpath(), _mark(home), f"-Xmx{heap}", "-Dlog4j2.level=INFO")


def find_brokers(home: Path) -> list[psutil.Process]:
    """Return the Java processes of the brokers that run in a directory, by number."""
    return sorted(find_processes(_mark(home), _MAIN), key=lambda process: process.info["cmdline"][-1:])


def _mark(home: Path) -> str:
    return f"-Dairflow_kafka_offsets.directory={home}"
