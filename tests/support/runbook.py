"""
The commands of ``docs/runbook.md``, run on the pipelines of :mod:`broken_pipelines`.

As a script it prints what they print, to be pasted into the page, on a new broker for each section::

    PYTHONPATH=.:tests/support python tests/support/runbook.py [SECTION ...]
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broken_pipelines import SITUATIONS, BrokenPipeline
from kafka_shell import run_class

from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "runbook.md"
NAMES = re.compile(r"\b(orders|payments|clicks)\b")
BROKERS = ("kafka-1:9092", "kafka-2:9092")
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OPTIONS = {"fail-on-data-loss": "failOnDataLoss", "max-offsets-per-trigger": "maxOffsetsPerTrigger"}
DEADLINE = 120.0
VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\bcluster [\w-]{22}(?!\w)"), "cluster ID"),
    (re.compile(r"\b\d+ min(?: \d+ s)?\b"), "MINUTES"),
    (re.compile(r"\b\d+\.\d\b"), "SECONDS"),
)
"""What differs from run to run."""
ON_BROKER = re.compile(r"On \S+, as \w+ says\.")


class Step(NamedTuple):
    """A command of the page, and what the page says that it prints; ``...`` stands for any lines."""

    command: str
    printed: tuple[str, ...]


def read_sections() -> dict[str, tuple[Step, ...]]:
    """Return the steps of each section by its anchor."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.split(r"^##+ (.*)$", text, flags=re.MULTILINE)
    return {
        title.lower().replace(" ", "-"): tuple(_steps(body))
        for title, body in zip(found[1::2], found[2::2], strict=True)
    }


def _steps(body: str) -> Iterator[Step]:
    for block in re.findall(r"^ *```console\n(.*?)^ *```$", body, re.MULTILINE | re.DOTALL):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Step(lines[start].removeprefix("$ "), tuple(lines[start + 1 : end]))


def run_step(step: Step, pipeline: BrokenPipeline, spark: SparkSession) -> str:
    """Run a command of the page on a pipeline, and return what it prints in the names of the page."""
    command = step.command
    if "--to-datetime" in command:
        # The page has a date, and the pipeline's records are of now.
        command = re.sub(r"--to-datetime \S+", "--by-duration 4h", command)
    if pipeline.prefix:
        command = NAMES.sub(lambda name: f"{pipeline.prefix}{name[0]}", command)
    command = command.replace("s3a://lake/checkpoints", str(pipeline.directory / "checkpoints"))
    servers = [each for each in (pipeline.servers, pipeline.other_servers) if each]
    for page, real in zip(BROKERS, servers, strict=False):
        command = command.replace(page, real)
    printed = _run(command, pipeline, spark)
    printed = printed.replace(str(pipeline.directory / "checkpoints"), "s3a://lake/checkpoints")
    for page, real in zip(BROKERS, servers, strict=False):
        printed = printed.replace(real, page)
    return printed.replace(pipeline.prefix, "") if pipeline.prefix else printed


def _run(command: str, pipeline: BrokenPipeline, spark: SparkSession) -> str:
    program, *arguments = shlex.split(command)
    if program == "spark-submit":
        options = (each.removeprefix("--").split("=") for each in arguments[1:])
        return pipeline.job(spark, **{OPTIONS[name]: value for name, value in options}) or ""
    if program == "kafka-console-consumer":
        return run_class(CONSOLE_CONSUMER, *arguments).stdout
    if program == "kafka-configs":
        return run_class(CONFIGS, *arguments).stdout
    if program == "kafka-consumer-groups":
        described = run_class(CONSUMER_GROUPS, *arguments)
        return described.error or "\n".join(
            line.rstrip()
            for line in described.stdout.splitlines()
            if line.strip() and " has no active" not in line
        )
    done = subprocess.run(
        command if program == "for" else [program, *arguments],
        shell=program == "for",
        cwd=pipeline.directory,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER": pipeline.servers,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return "\n".join(line for line in done.stdout.splitlines() if not ON_BROKER.fullmatch(line))


def agrees(step: Step, printed: str) -> bool:
    """Return whether the page has what a command printed, but for times, ids and the width of columns."""
    shown = ["..." if line.strip() == "..." else _plain(line) for line in step.printed]
    lines = [_plain(line) for line in printed.splitlines() if line.strip()]
    if step.command.startswith("kafka-consumer-groups"):
        # In the order of a hash.
        shown, lines = sorted(shown), sorted(lines)
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else f"{re.escape(line)}\n" for line in shown if line)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def _plain(line: str) -> str:
    for pattern, word in VARIABLE:
        line = pattern.sub(word, line)
    return " ".join(line.split())


def main() -> None:
    """Print what the commands of the page print."""
    from pyspark.sql import SparkSession
    from spark_session import connector_setting

    from airflow_kafka_offsets.local.kafka import EmbeddedKafka

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in connector_setting().items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    sections = read_sections()
    for anchor in sys.argv[1:] or [each for each in sections if each in SITUATIONS]:
        with tempfile.TemporaryDirectory() as home, EmbeddedKafka() as kafka, EmbeddedKafka() as other:
            pipeline = BrokenPipeline(
                kafka.bootstrap_servers, Path(home), other_servers=other.bootstrap_servers
            )
            SITUATIONS[anchor](pipeline, spark)
            print(f"\n## {anchor}", flush=True)
            for step in sections[anchor]:
                printed = run_step(step, pipeline, spark)
                print(f"{'=' if agrees(step, printed) else '!'} $ {step.command}\n{printed}", flush=True)


if __name__ == "__main__":
    main()
