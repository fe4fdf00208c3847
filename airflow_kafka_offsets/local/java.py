"""Finds a Java that is new enough for Kafka and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from airflow_kafka_offsets.errors import SetupError

MINIMUM = 17
"""Kafka 4 brokers and Spark 4 both need Java 17."""

REMEDY = (
    "install Java 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew "
    "install openjdk@17) and put it on PATH or name it in JAVA_HOME"
)


class Java(NamedTuple):
    """A ``java`` program and its feature release, such as 17."""

    path: Path
    version: int


def parse_version(text: str) -> int | None:
    """Return the feature release in the output of ``java -version``; ``1.8.0_392`` is 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text, re.ASCII)
    return int(found[1]) if found else None


def find_java() -> Java:
    """Find Java in JAVA_HOME, else on PATH, as Spark and Kafka do; a SetupError if it is not usable."""
    home, expected = os.environ.get("JAVA_HOME"), f"expected Java {MINIMUM} or newer: {REMEDY}"
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None and home:
        raise SetupError(f"JAVA_HOME is {home}, but it has no bin/java (correct or unset it); {expected}")
    if found is None:
        raise SetupError(f"no Java was found on PATH, {expected}")
    named = f"{found} (from {'JAVA_HOME' if home else 'PATH'})"
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{named} does not start ({error}): {REMEDY}") from error
    version = parse_version(done.stderr + done.stdout)
    if version is None:
        output = (done.stderr or done.stdout).strip()[:200]
        raise SetupError(f"{named} printed no version, its output is {output!r}: {REMEDY}")
    if version < MINIMUM:
        raise SetupError(f"{named} is Java {version}, {expected}")
    return Java(Path(found), version)
