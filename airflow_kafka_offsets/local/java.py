"""Which Java is on this machine, and is it new enough?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM = 17
"""Kafka 4 brokers and Spark 4 both need Java 17."""

REMEDY = (
    "install Java 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and put it on PATH or name it in JAVA_HOME"
)

_VERSION_LINE = re.compile(r'version "([^"]+)"')
_PROBE_TIMEOUT = 30.0


class Java(NamedTuple):
    """A Java that was found and asked for its version."""

    path: Path
    """The ``java`` program."""
    version: int
    """Feature release: 17 for ``17.0.15``, 8 for ``1.8.0_392``."""


def parse_version(text: str) -> int | None:
    """
    Feature release in the output of ``java -version``.

    :param text: what Java printed.
    :return: 17 for ``openjdk version "17.0.15"``, 8 for ``java version "1.8.0_392"``, ``None`` for anything else.
    """
    line = _VERSION_LINE.search(text)
    if line is None:
        return None
    numbers = [int(number) for number in re.findall(r"[0-9]+", line[1])]
    if not numbers:
        return None
    # Up to Java 8 the version was written 1.8.
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def locate_java(environ: Mapping[str, str] | None = None) -> tuple[Path, str] | None:
    """
    Where Java is, and what said so.

    :param environ: the environment to look at; default: the process's own.
    :return: the program and ``JAVA_HOME`` or ``PATH``; ``None`` if neither has one. A ``JAVA_HOME`` that is
        set decides, even when there is no Java in it: Spark and Kafka would use it too.
    """
    environ = os.environ if environ is None else environ
    if home := environ.get("JAVA_HOME"):
        return Path(home) / "bin" / "java", "JAVA_HOME"
    found = shutil.which("java", path=environ.get("PATH", ""))
    return (Path(found), "PATH") if found else None


def find_java(minimum: int = MINIMUM, environ: Mapping[str, str] | None = None) -> Java:
    """
    Find a Java of at least ``minimum``: the one of JAVA_HOME, else the first on PATH.

    :param minimum: the oldest feature release that will do.
    :param environ: the environment to look at; default: the process's own.
    :raises SetupError: if there is none, it does not start, or it is too old.
    """
    located = locate_java(environ)
    if located is None:
        raise SetupError(f"no Java was found on PATH, expected Java {minimum} or newer: {REMEDY}")
    path, source = located
    if not path.is_file():
        raise SetupError(
            f"JAVA_HOME is {path.parent.parent}, but there is no bin/java in it (correct or unset it); "
            f"expected Java {minimum} or newer: {REMEDY}"
        )
    try:
        # The version goes to stderr.
        answer = subprocess.run(
            [str(path), "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{path} (from {source}) does not start ({error}): {REMEDY}") from error
    version = parse_version(answer.stderr + answer.stdout)
    if version is None:
        said = (answer.stderr or answer.stdout).strip()[:200]
        raise SetupError(f"{path} (from {source}) does not tell its version, it said {said!r}: {REMEDY}")
    if version < minimum:
        raise SetupError(
            f"{path} (from {source}) is Java {version}, expected Java {minimum} or newer: {REMEDY}"
        )
    return Java(path, version)
