"""Runs Kafka's own tools from the jars of the embedded Kafka."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.jars import kafka_classpath, tools_classpath
from airflow_kafka_offsets.local.java import find_java

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""The class behind ``kafka-consumer-groups``."""

QUICK_START: tuple[str, ...] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java options: only the fast compiler and a simple collector, for a faster start and less memory."""


def java_command(jars: Iterable[Path], *options: str) -> list[str]:
    """Return the Java command for a class in these jars, up to the class name."""
    return [str(find_java().path), *options, *QUICK_START, "-cp", os.pathsep.join(map(str, jars))]


def run_tool(class_name: str, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a class of Kafka's tools without its log; raise a SetupError after a timeout."""
    # StorageTool and some others are in the broker's jar: their package is kafka, not org.apache.kafka.
    jars = kafka_classpath() if class_name.startswith("kafka.") else tools_classpath()
    options = ("-Xmx256m", "-Dlog4j2.level=OFF", "-Dlog4j2.statusLoggerLevel=OFF")
    try:
        return subprocess.run(
            [*java_command(jars, *options), class_name, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{class_name} did not finish within {timeout:g} s") from error


def describe_group(bootstrap_servers: str, group: str) -> str:
    """Return the output of ``kafka-consumer-groups --describe --group``; raise a SetupError if it fails."""
    done = run_tool(CONSUMER_GROUPS, "--bootstrap-server", bootstrap_servers, "--describe", "--group", group)
    output = f"{done.stdout}\n{done.stderr}"
    # The tool exits with 0 even after an error.
    if done.returncode or "\nError: " in f"\n{output}":
        raise SetupError(f"kafka-consumer-groups could not describe {group!r}: {output.strip()}")
    return done.stdout
