"""Kafka's own tool for consumer groups, from the jars of the embedded Kafka."""

from __future__ import annotations

import re
import subprocess
from typing import TypedDict

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.jars import classpath_text, kafka_classpath
from airflow_kafka_offsets.local.java import find_java

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""The class behind ``kafka-consumer-groups``."""

_TIMEOUT = 60.0


class DescribeRow(TypedDict):
    """One line of ``kafka-consumer-groups --describe``; ``None`` where the tool prints ``-``."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None


def tool_command(class_name: str) -> list[str]:
    """Return the command that runs a class of Kafka's jars, without its arguments and its log."""
    flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
    quiet = ("-Dlog4j2.level=OFF", "-Dlog4j2.statusLoggerLevel=OFF")
    return [str(find_java().path), *flags, *quiet, "-cp", classpath_text(kafka_classpath()), class_name]


def describe_group(bootstrap_servers: str, group: str) -> str:
    """
    Return what ``kafka-consumer-groups --describe --group`` prints.

    :raises SetupError: if the tool reports an error, or does not finish in time.
    """
    arguments = ["--bootstrap-server", bootstrap_servers, "--describe", "--group", group]
    try:
        done = subprocess.run(
            [*tool_command(CONSUMER_GROUPS), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"kafka-consumer-groups did not finish within {_TIMEOUT:g} s") from error
    output = f"{done.stdout}\n{done.stderr}"
    # It exits 0 also when it fails.
    if done.returncode or "\nError: " in f"\n{output}":
        raise SetupError(f"kafka-consumer-groups could not describe {group!r}: {output.strip()}")
    return done.stdout


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
