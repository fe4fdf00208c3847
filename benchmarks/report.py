"""Prints the measurements as Markdown tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import confluent_kafka
from measuring import Section, Target, Times

from airflow_kafka_offsets.local.jars import KAFKA_VERSION
from airflow_kafka_offsets.local.java import find_java


def machine() -> list[str]:
    """Describe the machine and the software of the measurements."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return [
        f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB of memory, {platform.system()} "
        f"{platform.release()}",
        f"Python {platform.python_version()}, Java {find_java().version}",
        f"Kafka {KAFKA_VERSION}, one broker on loopback",
        f"confluent-kafka {version('confluent-kafka')} (librdkafka {confluent_kafka.libversion()[0]}), "
        f"kafka-python {version('kafka-python')}, fsspec {version('fsspec')}",
        f"load average at the end: {load}",
    ]


def markdown(sections: Sequence[Section]) -> str:
    """Return all tables as Markdown."""
    lines = [f"- {line}" for line in machine()]
    targets = [target for section in sections for target in section.targets]
    if targets:
        lines += ["", *_table(("Target", "expected", "measured", "met"), map(_target, targets))]
    for section in sections:
        lines += ["", f"### {section.title}", "", *(section.table or _times(section.times))]
        for note in section.notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def _target(target: Target) -> Sequence[str]:
    bound = "at least" if target.at_least else "at most"
    return (
        target.text,
        f"{bound} {target.limit:g} {target.unit}",
        f"{target.measured:.3g} {target.unit}",
        "yes" if target.met else "**no**",
    )


def _times(times: Times) -> Iterable[str]:
    first = times.everybody[0]
    rows = []
    for who in times.everybody:
        cells = []
        for task in times.tasks:
            if not times.has(task, who):
                cells.append("-")
                continue
            cell = f"{_ms(times.median(task, who))} [{_ms(times.best(task, who))}]"
            if who != first and times.has(task, first):
                cell += f", {times.ratio((task, who), (task, first)):.2g}x"
            cells.append(cell)
        rows.append((who, *cells))
    return _table(("ms: median [best], times the first line", *times.tasks), rows)


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"| --- |{' ---: |' * (len(head) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
