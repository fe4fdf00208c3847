"""Runs Kafka's own command-line tools, as their shell scripts would."""

import re
from typing import NamedTuple, TypedDict

from airflow_kafka_offsets.local.tools import run_tool


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


def run_class(class_name: str, *arguments: str) -> ToolResult:
    """Run a class behind one of Kafka's shell scripts, from the jars of the embedded Kafka."""
    done = run_tool(class_name, *arguments)
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
