"""
Does the Kafka connector that Spark will load fit the Spark that is installed?

Spark does not check. A connector of another Spark version dies with NoSuchMethodError or finds no data
source, one of another Scala version with NoClassDefFoundError, and a second kafka-clients beside the
connector's own with whatever class comes first.
"""

from __future__ import annotations

import itertools
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.local.checks import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CONNECTOR = "spark-sql-kafka-0-10"

_JAR = re.compile(r"(?P<name>.+?)-(?P<version>[0-9][^/]*)\.jar")


class Artifact(NamedTuple):
    """A library that Spark was told to load."""

    name: str
    """Maven's artifact, with the Scala version if it has one."""
    version: str
    """Its version."""
    source: str
    """Where it was named: ``--packages``, a file."""
    resolved: bool
    """Whether it is a coordinate, whose own dependencies come with it, rather than a jar file."""


class Spark(NamedTuple):
    """The Spark that is installed."""

    version: str
    """Such as ``4.0.0``."""
    scala: str
    """Scala version that its jars are built for, such as ``2.13``."""

    @property
    def connector(self) -> str:
        """Maven coordinate of the Kafka connector that fits."""
        return f"org.apache.spark:{CONNECTOR}_{self.scala}:{self.version}"


def default_scala(spark_version: str) -> str:
    """Scala version of a Spark from PyPI: 2.12 up to Spark 3.5, 2.13 from Spark 4."""
    return "2.12" if int(spark_version.split(".", 1)[0]) < 4 else "2.13"


def spark_in(jar_names: Iterable[str]) -> Spark | None:
    """
    Which Spark a directory of jars is.

    :param jar_names: file names in ``$SPARK_HOME/jars``.
    """
    for name in jar_names:
        if found := re.fullmatch(r"spark-core_([0-9.]+)-([0-9][^/]*)\.jar", name):
            return Spark(version=found[2], scala=found[1])
    return None


def from_packages(packages: str, source: str = "--packages") -> Iterator[Artifact]:
    """
    Artifacts of a comma-separated list of Maven coordinates.

    :param packages: such as ``org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,...``.
    :param source: where it was found.
    """
    for coordinate in packages.split(","):
        parts = coordinate.strip().split(":")
        if len(parts) >= 3:
            yield Artifact(parts[1], parts[-1], source, resolved=True)


def from_jars(jars: str, source: str = "--jars", separator: str = ",") -> Iterator[Artifact]:
    """
    Artifacts of a list of jar files, by their names.

    :param jars: paths or URIs.
    :param source: where it was found.
    :param separator: between two of them.
    """
    for jar in jars.split(separator):
        if found := _JAR.fullmatch(jar.strip().rpartition("/")[2]):
            yield Artifact(found["name"], found["version"], source, resolved=False)


def from_properties(properties: Iterable[tuple[str, str]], source: str) -> Iterator[Artifact]:
    """
    Artifacts that Spark properties name.

    :param properties: keys and values.
    :param source: where they were found.
    """
    for key, value in properties:
        if key == "spark.jars.packages":
            yield from from_packages(value, f"{key} in {source}")
        elif key == "spark.jars":
            yield from from_jars(value, f"{key} in {source}")
        elif key in ("spark.driver.extraClassPath", "spark.executor.extraClassPath"):
            yield from from_jars(value, f"{key} in {source}", separator=":")


def from_submit_args(arguments: str, source: str = "PYSPARK_SUBMIT_ARGS") -> Iterator[Artifact]:
    """
    Artifacts that a ``spark-submit`` command line names.

    :param arguments: as in the variable PYSPARK_SUBMIT_ARGS.
    :param source: where it was found.
    """
    try:
        words = shlex.split(arguments)
    except ValueError:
        # A quote is not closed; Spark will say so itself.
        words = arguments.split()
    # Both --packages X and --packages=X.
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for option, value in itertools.pairwise(words):
        if option == "--packages":
            yield from from_packages(value, f"{option} in {source}")
        elif option == "--jars":
            yield from from_jars(value, f"{option} in {source}")
        elif option == "--driver-class-path":
            yield from from_jars(value, f"{option} in {source}", separator=":")
        elif option in ("--conf", "-c"):
            yield from from_properties([_key_and_value(value)], source)


def parse_defaults(text: str) -> list[tuple[str, str]]:
    """
    Keys and values of a ``spark-defaults.conf``.

    :param text: the file's content.
    """
    lines = (line.strip() for line in text.splitlines())
    return [_key_and_value(line) for line in lines if line and not line.startswith("#")]


def _key_and_value(line: str) -> tuple[str, str]:
    key, *value = re.split(r"\s*[=\s]\s*", line, maxsplit=1)
    return key, "".join(value)


def check_connector(spark: Spark | None, artifacts: Sequence[Artifact]) -> list[Check]:
    """
    Compare what Spark was told to load with what fits.

    :param spark: the Spark that is installed; ``None``: there is none, and nothing to compare with.
    :param artifacts: everything that was named, wherever.
    """
    connectors = [artifact for artifact in artifacts if artifact.name.startswith(f"{CONNECTOR}_")]
    checks = [_check_version(spark, connector) for connector in connectors]
    if not checks and spark is not None:
        found = f"none is named here; the one for Spark {spark.version} is {spark.connector}"
        checks.append(Check("Spark's Kafka connector", "ok", found))
    brought = any(connector.resolved for connector in connectors)
    checks += [
        _check_clients(artifact, brought) for artifact in artifacts if artifact.name == "kafka-clients"
    ]
    return checks


def _check_version(spark: Spark | None, connector: Artifact) -> Check:
    name = "Spark's Kafka connector"
    found = f"{connector.name}:{connector.version} ({connector.source})"
    if spark is None:
        return Check(
            name, "warn", f"{found}, and no Spark to compare it with", "install Spark or set SPARK_HOME"
        )
    scala = connector.name.rpartition("_")[2]
    differs = []
    if scala != spark.scala:
        differs.append(f"it is for Scala {scala}, expected {spark.scala}")
    if connector.version != spark.version:
        differs.append(f"it is for Spark {connector.version}, expected {spark.version}")
    if not differs:
        return Check(name, "ok", found)
    return Check(name, "fail", f"{found}: {' and '.join(differs)}", f"use {spark.connector}")


def _check_clients(clients: Artifact, brought: bool) -> Check:
    found = f"kafka-clients {clients.version} was added by hand ({clients.source})"
    if brought:
        return Check(
            "kafka-clients",
            "fail",
            found,
            "remove it: the connector's coordinate brings the version it was built with",
        )
    return Check(
        "kafka-clients",
        "warn",
        found,
        "name the connector in --packages, which brings the right one, and remove it",
    )
