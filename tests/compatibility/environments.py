"""
Environments for other versions of Spark, and the tests that run in them.

Each version gets an environment of its own, without Airflow, with the Kafka connector of that version; it is
kept in a cache directory for the next time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from jgo.config import GlobalSettings
from jgo.maven import MavenContext

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.cache import lock_file
from airflow_kafka_offsets.local.jars import kafka_classpath, tools_classpath

ROOT = Path(__file__).parents[2]
TESTS = "tests/compatibility"
INSTALL_LIMIT, TEST_LIMIT, LAST_WORDS = 1200, 2400, 60
REQUEST_LIMIT = 30
# What the package needs outside Airflow, and what the tests need.
NEEDS = ("click", "confluent-kafka", "fsspec", "rich", "sqlalchemy", "tenacity")
TESTS_NEED = (
    "cryptography",
    "filelock",
    "hypothesis",
    "platformdirs",
    "psutil",
    "pytest",
    "pytest-timeout",
)


class Version(NamedTuple):
    """A version of Spark, and what it runs with."""

    pyspark: str
    jars: tuple[str, ...]
    """The Kafka connector with its dependencies, as Maven coordinates."""
    pins: tuple[str, ...] = ("pandas<3",)
    """What Spark Connect's client needs and would be too new."""


def _spark(artifact: str, scala: str, version: str) -> str:
    return f"org.apache.spark:{artifact}_{scala}:{version}"


def _spark_4(version: str, connector: str, token_provider: str, kafka_clients: str, pool: str) -> Version:
    """Return a version of Spark 4 and the nearest connector, which Maven does not have for every Spark."""
    return Version(
        version,
        (
            _spark("spark-sql-kafka-0-10", "2.13", connector),
            _spark("spark-token-provider-kafka-0-10", "2.13", token_provider),
            f"org.apache.kafka:kafka-clients:{kafka_clients}",
            f"org.apache.commons:commons-pool2:{pool}",
        ),
    )


VERSIONS = {
    "3.5": Version(
        "3.5.3",
        (
            _spark("spark-sql-kafka-0-10", "2.12", "3.5.3"),
            _spark("spark-token-provider-kafka-0-10", "2.12", "3.5.3"),
            "org.apache.kafka:kafka-clients:3.4.1",
            "org.apache.commons:commons-pool2:2.11.1",
            # Since Spark 4 the server of Spark Connect is in PySpark itself.
            _spark("spark-connect", "2.12", "3.5.4"),
        ),
        # NumPy 2 came after this Spark, and PyArrow 26 needs it. setuptools has distutils, which Python 3.12
        # has not.
        ("pandas<3", "numpy<2", "pyarrow<26", "setuptools<80"),
    ),
    "4.0": _spark_4("4.0.0", "4.0.0", "4.0.0", "3.9.0", "2.12.0"),
    "4.1": _spark_4("4.1.4", "4.1.3", "4.1.1", "3.9.1", "2.12.1"),
    "4.2": _spark_4("4.2.1", "4.2.0", "4.2.0", "3.9.2", "2.13.1"),
    "4.3": _spark_4("4.3.0", "4.2.0", "4.2.0", "3.9.2", "2.13.1"),
}


class Outcome(NamedTuple):
    """How the tests of one version went."""

    python: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    trouble: str = ""


def run_version(version: str, directory: Path, program: str, arguments: list[str]) -> Outcome:
    """Run the compatibility suite, or a part of it, on a version of Spark."""
    spark = VERSIONS[version]
    started = time.monotonic()
    try:
        # The environments have no jgo: the broker's jars are in the user's cache when they come to look.
        kafka_classpath()
        tools_classpath()
        jars = [jar_of(coordinate, directory / "jars") for coordinate in spark.jars]
        python = environment_of(spark, directory, program)
        return _test(spark, python, jars, arguments)
    except (OSError, RuntimeError, SetupError, subprocess.SubprocessError) as error:
        return Outcome(program, 0, 0, 0, time.monotonic() - started, str(error))


def jar_of(coordinate: str, repository: Path) -> Path:
    """Fetch a jar from Maven unless it is there."""
    group, artifact, version = coordinate.split(":")
    context = MavenContext(
        repo_cache=repository,
        remote_repos={**GlobalSettings.load().repositories, **MavenContext().remote_repos},
        timeout=REQUEST_LIMIT,
    )
    jar = Path(context.project(group, artifact).at_version(version).artifact().resolve())
    if not zipfile.is_zipfile(jar):
        jar.unlink()
        raise RuntimeError(f"{jar.name} had arrived only in part and was removed: run this again")
    return jar


def environment_of(spark: Version, directory: Path, program: str) -> Path:
    """Make the environment unless it is there as it should be, and return its Python."""
    number = output_of([program, "-c", "import platform; print(platform.python_version())"]).strip()
    home = directory / f"spark-{spark.pyspark}-python-{number}"
    requirements = [f"pyspark[connect]=={spark.pyspark}", *spark.pins, *NEEDS, *TESTS_NEED]
    # The set is made for Spark 4 and Python 3.11.
    fits = not spark.pyspark.startswith("3.") and not number.startswith("3.10.")
    constraints = _constraints() if fits else ""
    wanted = "\n".join([*requirements, constraints])
    with lock_file(directory / f"{home.name}.lock", f"making {home.name}", INSTALL_LIMIT):
        made, python = home / "made-from", home / "bin" / "python"
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            output_of([program, "-m", "venv", str(home)])
            (home / "constraints.txt").write_text(constraints)
            limits = ["-c", str(home / "constraints.txt")]
            output_of([str(python), "-m", "pip", "install", "-q", *limits, *requirements])
            made.write_text(wanted)
    return python


def _constraints() -> str:
    """Return the versions that the tests run with otherwise, but for those that hang on Spark's."""
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not re.match("py4j|pyspark|pandas|numpy", line))


def output_of(command: list[str]) -> str:
    """Run a command that has to succeed, and return what it prints."""
    answer = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
    if answer.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:4])} ... failed:\n{(answer.stdout + answer.stderr).strip()[-2000:]}"
        )
    return answer.stdout


def _test(spark: Version, python: Path, jars: list[Path], arguments: list[str]) -> Outcome:
    settings = {
        "COMPATIBILITY_SPARK_VERSION": spark.pyspark,
        "SPARK_CONNECTOR_JARS": ",".join(map(str, jars)),
    }
    return run_tests(python, [TESTS, *arguments], settings)


def run_tests(python: Path, arguments: list[str], settings: dict[str, str]) -> Outcome:
    """Run tests with the Python of an environment, and return how they went."""
    started = time.monotonic()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not re.match("AIRFLOW__|PYTEST_|PYSPARK_|SPARK_", name)
    } | {
        **settings,
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")]),
        # Instead of an installation: that would ask for Airflow, and for Python 3.11.
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    version = output_of([str(python), "-c", "import platform; print(platform.python_version())"]).strip()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # some tests record a property
        trouble = _in_time([*command, *arguments], environment)
        seconds = time.monotonic() - started
        if not report.exists():
            return Outcome(version, 0, 0, 0, seconds, trouble or "pytest did not get as far as a report")
        suite = next(ElementTree.parse(report).iter("testsuite"))
    tests, failures, errors, skipped = (
        int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Outcome(version, tests - failed - skipped, failed, skipped, seconds, trouble)


def _in_time(command: list[str], environment: dict[str, str]) -> str:
    """Run the tests, and end them with everything that they have started if they take too long."""
    tests = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    trouble = ""
    try:
        tests.wait(TEST_LIMIT)
    except subprocess.TimeoutExpired:
        trouble = f"not finished after {TEST_LIMIT} s"
    finally:
        # Also when Ctrl-C came meanwhile, which does not reach another session.
        if tests.poll() is None:
            tests.send_signal(signal.SIGINT)
            try:
                tests.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                os.killpg(tests.pid, signal.SIGKILL)
                tests.wait()
    return trouble
