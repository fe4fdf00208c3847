"""What do Kafka's own command-line tools say?"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.jars import classpath_text, kafka_classpath
from airflow_kafka_offsets.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""The class behind ``kafka-consumer-groups``."""

_QUIET_LOG4J = """\
status = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %m%n
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


class ToolResult(NamedTuple):
    """What a tool printed, and its exit status. Most of Kafka's tools exit 0 also when they fail."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def error(self) -> str | None:
        """The error that the tool reported in whatever way; ``None`` if it did not."""
        lines = [line for line in (self.stdout + self.stderr).splitlines() if line.startswith("Error: ")]
        if lines:
            return "\n".join(lines)
        if self.returncode != 0:
            return self.stderr.strip() or self.stdout.strip() or f"exit status {self.returncode}"
        return None


class DescribeRow(TypedDict):
    """One line of ``kafka-consumer-groups --describe``; ``None`` where the tool prints ``-``."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None


class KafkaTools:
    """
    Runs the classes behind Kafka's shell scripts, from the jars of the embedded Kafka.

    :param bootstrap_servers: ``host:port`` of the broker.
    :param command_config: a Java properties file for the clients, as the scripts' ``--command-config``.
    :param progress: called with a line of text now and then while jars are fetched.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._command_config = command_config
        self._progress = progress

    def consumer_groups(self, *arguments: str, timeout: float = 60.0) -> ToolResult:
        """
        Run ``kafka-consumer-groups`` with these arguments on the broker.

        :param arguments: as on the command line, such as ``"--group", "orders", "--describe"``.
        :param timeout: seconds until it is ended.
        :raises SetupError: if it did not finish in time, or Java or the jars are missing.
        """
        to_broker = ["--bootstrap-server", self._bootstrap_servers]
        if self._command_config is not None:
            to_broker += ["--command-config", str(self._command_config)]
        return self.run(CONSUMER_GROUPS, *to_broker, *arguments, timeout=timeout)

    def describe(self, group: str) -> str:
        """
        Return what ``kafka-consumer-groups --describe --group`` prints on standard output.

        :param group: the consumer group.
        :raises SetupError: if the tool reported an error, such as a group that does not exist.
        """
        result = self.consumer_groups("--describe", "--group", group)
        if result.error is not None:
            raise SetupError(f"kafka-consumer-groups could not describe {group!r}: {result.error}")
        return result.stdout

    def describe_rows(self, group: str) -> list[DescribeRow]:
        """
        Offsets and lag per partition of ``group`` as Kafka's own tool sees them, in order.

        :param group: the consumer group.
        :raises SetupError: if the tool reported an error.
        """
        return sorted(parse_describe(self.describe(group)), key=lambda row: (row["topic"], row["partition"]))

    def run(self, class_name: str, *arguments: str, timeout: float = 60.0) -> ToolResult:
        """
        Run any class of Kafka's jars.

        :param class_name: with its package, such as ``org.apache.kafka.tools.TopicCommand``.
        :param arguments: its arguments; it is not told about the broker.
        :param timeout: seconds until it is ended.
        :raises SetupError: if it did not finish in time, or Java or the jars are missing.
        """
        java = find_java().path
        classpath = classpath_text(kafka_classpath(self._progress))
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as log4j:
            log4j.write(_QUIET_LOG4J)
            log4j.flush()
            flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"]
            try:
                answer = subprocess.run(
                    [
                        *(str(java), *flags, f"-Dlog4j2.configurationFile={log4j.name}"),
                        *("-cp", classpath, class_name, *arguments),
                    ],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise SetupError(
                    f"{class_name} did not finish within {timeout:g} s: check that the broker at "
                    f"{self._bootstrap_servers} answers"
                ) from error
        return ToolResult(answer.stdout, answer.stderr, answer.returncode)


def parse_describe(text: str) -> list[DescribeRow]:
    """
    Read the table of ``kafka-consumer-groups --describe``.

    :param text: its standard output; lines around the table are left out.
    """
    rows: list[DescribeRow] = []
    for line in text.splitlines():
        # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID; a group's name may
        # hold spaces, a topic's may not.
        found = re.match(r"(.+?)\s+(\S+)\s+([0-9]+)\s+(-|[0-9]+)\s+(-|[0-9]+)\s+(-|[0-9]+)\s", line + " ")
        if found:
            rows.append(
                DescribeRow(
                    group=found[1],
                    topic=found[2],
                    partition=int(found[3]),
                    current_offset=_number(found[4]),
                    log_end_offset=_number(found[5]),
                    lag=_number(found[6]),
                )
            )
    return rows


def _number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)
