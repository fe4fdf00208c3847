"""Measures what the installed package, and a DAG file that uses it, cost Airflow."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from measuring import Section, Target, Times

_PROVIDER_INFO = """
import time
began = time.perf_counter()
from airflow_kafka_offsets.provider_info import get_provider_info
get_provider_info()
print(time.perf_counter() - began)
"""
_DAG_FILE = """
import importlib, json, pkgutil, sys
import airflow_kafka_offsets.pipeline
for name in ("operators", "sensors", "triggers"):
    package = importlib.import_module(f"airflow_kafka_offsets.{name}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
heavy = {"confluent_kafka", "pyspark"}
print(json.dumps(sorted(heavy & {name.partition(".")[0] for name in sys.modules})))
"""
WHO = "ours"
TASK = "import and call, in a new interpreter"


def measure(rounds: int) -> Section:
    seconds = [float(_said(_PROVIDER_INFO)) for _ in range(rounds + 1)][1:]
    heavy = json.loads(_said(_DAG_FILE).splitlines()[-1])
    return Section(
        "Provider info",
        Times({(TASK, WHO): seconds}),
        [
            Target(
                "Reading the provider info", statistics.median(seconds) * 1000, 20, at_least=False, unit="ms"
            ),
            Target(
                "Of pyspark and confluent_kafka, imported with all operators, sensors and triggers",
                len(heavy),
                0,
                at_least=False,
                unit="modules",
            ),
        ],
    )


def _said(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout
