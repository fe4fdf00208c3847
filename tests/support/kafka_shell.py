"""Runs Kafka's own command-line tools, as their shell scripts would."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS, run_tool

if TYPE_CHECKING:
    from pathlib import Path


class DescribeRow(TypedDict):
    """One line of ``kafka-consumer-groups --describe``; ``None`` where the tool prints ``-``."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None


class ToolResult(NamedTuple):
    """Output and exit status of a tool. Most of Kafka's tools exit 0 also when they fail."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def error(self) -> str | None:
        """The error that the tool reported in whatever way; ``None`` if it did not."""
        lines = [line for line in (self.stdout + self.stderr).splitlines() if line.startswith("Error: ")]
        if lines or self.returncode == 0:
            return "\n".join(lines) or None
        return self.stderr.strip() or self.stdout.strip() or f"exit status {self.returncode}"


class KafkaTools:
    """
    Runs the classes behind Kafka's shell scripts, from the jars of the embedded Kafka.

    :param bootstrap_servers: ``host:port`` of the broker.
    :param command_config: a Java properties file for the clients, as the scripts' ``--command-config``.
    """

    def __init__(self, bootstrap_servers: str, command_config: Path | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._command_config = command_config

    def consumer_groups(self, *arguments: str, timeout: float = 60.0) -> ToolResult:
        """Run ``kafka-consumer-groups`` on the broker with arguments such as ``"--list"``."""
        to_broker = ["--bootstrap-server", self._bootstrap_servers]
        if self._command_config is not None:
            to_broker += ["--command-config", str(self._command_config)]
        return self.run(CONSUMER_GROUPS, *to_broker, *arguments, timeout=timeout)

    def describe(self, group: str) -> str:
        """Return what ``kafka-consumer-groups --describe --group`` prints; an error is a SetupError."""
        result = self.consumer_groups("--describe", "--group", group)
        if result.error is not None:
            raise SetupError(f"kafka-consumer-groups could not describe {group!r}: {result.error}")
        return result.stdout

    def describe_rows(self, group: str) -> list[DescribeRow]:
        """Return :meth:`describe` as rows, sorted by topic and partition."""
        return sorted(parse_describe(self.describe(group)), key=lambda row: (row["topic"], row["partition"]))

    def run(self, class_name: str, *arguments: str, timeout: float = 60.0) -> ToolResult:
        """Run any class of Kafka's jars; the broker is not added to its arguments."""
        done = run_tool(class_name, *arguments, timeout=timeout)
        return ToolResult(done.stdout, done.stderr, done.returncode)


def parse_describe(text: str) -> list[DescribeRow]:
    """Parse the table of ``kafka-consumer-groups --describe`` and skip the lines around it."""
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ...; a group's name may contain spaces.
    row = re.compile(r"^(\S.*?) +(\S+) +([0-9]+) +(-|[0-9]+) +(-|[0-9]+) +(-|[0-9]+)(?: |$)", re.MULTILINE)
    return [
        DescribeRow(
            group=group,
            topic=topic,
            partition=int(partition),
            current_offset=_number(current),
            log_end_offset=_number(end),
            lag=_number(lag),
        )
        for group, topic, partition, current, end, lag in row.findall(text)
    ]


def _number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)
