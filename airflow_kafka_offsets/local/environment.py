"""Has this machine what the package, its demo and Spark need?"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local import connector
from airflow_kafka_offsets.local.broker_config import LOOPBACK, is_free
from airflow_kafka_offsets.local.checks import Check
from airflow_kafka_offsets.local.connector import Artifact, Spark
from airflow_kafka_offsets.local.directories import CACHE_VARIABLE, cache_directory
from airflow_kafka_offsets.local.jars import listing_file, probe_registry, read_listing
from airflow_kafka_offsets.local.java import REMEDY, find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_REGISTRY_TIMEOUT = 15.0
_INSTALL_SPARK = "pip install 'airflow-kafka-offsets[spark]'"


def check_environment(
    *,
    packages: Sequence[str] = (),
    jars: Sequence[str] = (),
    port: int | None = None,
    registry: bool = False,
    environ: Mapping[str, str] | None = None,
) -> list[Check]:
    """
    Look at everything that has to be right before a broker and a Spark job can start.

    :param packages: Maven coordinates that jobs give to ``--packages``.
    :param jars: jar files that jobs give to ``--jars``.
    :param port: a port that is wanted for the embedded Kafka.
    :param registry: whether to try the registry that jars come from.
    :param environ: the environment to look at; default: the process's own.
    :return: one entry for each thing, in the order to repair them in.
    """
    environ = os.environ if environ is None else environ
    pyspark = installed_version("pyspark")
    home = spark_home(environ)
    spark = connector.spark_in(_jar_names(home)) if home else None
    checks = [
        check_java(environ),
        check_pyspark(pyspark, installed_version("pyspark-client")),
        *check_spark_home(environ.get("SPARK_HOME"), spark, pyspark),
    ]
    if spark is None and pyspark is not None:
        spark = Spark(pyspark, connector.default_scala(pyspark))
    named = [
        *connector.from_packages(",".join(packages)),
        *connector.from_jars(",".join(jars)),
        *configured_artifacts(environ, home),
    ]
    checks += connector.check_connector(spark, named)
    checks.append(check_kafka_jars())
    if port is not None:
        checks.append(check_port(port))
    checks.append(check_writable("temporary directory", Path(tempfile.gettempdir()), "TMPDIR"))
    checks.append(check_writable("cache directory", cache_directory(), CACHE_VARIABLE))
    if registry:
        checks.append(check_registry())
    return checks


def check_java(environ: Mapping[str, str] | None = None) -> Check:
    """Java 17 or newer, where Spark and Kafka will look for it."""
    try:
        java = find_java(environ=environ)
    except SetupError as error:
        return Check("Java", "fail", str(error).removesuffix(f": {REMEDY}"), REMEDY)
    return Check("Java", "ok", f"Java {java.version} ({java.path})")


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it; ``None`` if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_pyspark(pyspark: str | None, client: str | None) -> Check:
    """
    Compare pyspark and pyspark-client: both write the same directory, so two versions mix their files.

    :param pyspark: installed version of pyspark.
    :param client: installed version of pyspark-client.
    """
    if pyspark is None:
        found = (
            "not installed" if client is None else f"only pyspark-client {client}, which has no spark-submit"
        )
        return Check("pyspark", "warn", f"{found}: local Spark jobs and the demo need it", _INSTALL_SPARK)
    if client is not None and client != pyspark:
        return Check(
            "pyspark",
            "fail",
            f"pyspark {pyspark} and pyspark-client {client} have overwritten each other's files; "
            "they have to be of one version",
            "pip uninstall -y pyspark pyspark-client && "
            f"pip install 'pyspark=={pyspark}' 'pyspark-client=={pyspark}'",
        )
    both = "" if client is None else f" and pyspark-client {client}"
    return Check("pyspark", "ok", f"pyspark {pyspark}{both}")


def check_spark_home(home: str | None, spark: Spark | None, pyspark: str | None) -> list[Check]:
    """
    Compare the Spark in SPARK_HOME with pyspark, whose ``spark-submit`` would start the former.

    :param home: the variable's value.
    :param spark: the Spark found there.
    :param pyspark: installed version of pyspark.
    """
    if not home:
        return []
    if spark is None:
        found = f"{home}, which has no jars/spark-core_*.jar"
        return [
            Check("SPARK_HOME", "fail", found, "unset SPARK_HOME, or name the directory of a Spark in it")
        ]
    if pyspark is not None and pyspark != spark.version:
        found = f"{home} is Spark {spark.version}, but pyspark is {pyspark}"
        return [Check("SPARK_HOME", "fail", found, "unset SPARK_HOME, or install the pyspark of its version")]
    return [Check("SPARK_HOME", "ok", f"{home} (Spark {spark.version}, Scala {spark.scala})")]


def spark_home(environ: Mapping[str, str]) -> Path | None:
    """Directory of the Spark that ``spark-submit`` would start: SPARK_HOME, else the one inside pyspark."""
    if home := environ.get("SPARK_HOME"):
        return Path(home)
    # find_spec of a top-level package imports nothing.
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else None


def configured_artifacts(environ: Mapping[str, str], home: Path | None) -> Iterator[Artifact]:
    """
    Artifacts that every job here would load without naming them.

    :param environ: for PYSPARK_SUBMIT_ARGS and SPARK_CONF_DIR.
    :param home: directory of the Spark.
    """
    yield from connector.from_submit_args(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    configuration = environ.get("SPARK_CONF_DIR")
    directory = Path(configuration) if configuration else home / "conf" if home else None
    if directory is not None:
        defaults = directory / "spark-defaults.conf"
        if defaults.is_file():
            text = defaults.read_text(encoding="utf-8", errors="replace")
            yield from connector.from_properties(connector.parse_defaults(text), str(defaults))
    if home is not None:
        for name in _jar_names(home):
            yield from connector.from_jars(name, str(home / "jars"))


def _jar_names(home: Path) -> list[str]:
    return sorted(jar.name for jar in (home / "jars").glob("*.jar"))


def check_kafka_jars() -> Check:
    """The embedded Kafka's jars are here, or can be fetched."""
    listing = listing_file()
    if (jars := read_listing(listing)) is not None:
        return Check("embedded Kafka", "ok", f"its {len(jars)} jars are in {listing.parent}")
    if importlib.util.find_spec("jgo") is None:
        return Check(
            "embedded Kafka",
            "warn",
            "its jars are not here, and jgo, which fetches them, is not installed (the demo needs it)",
            "pip install 'airflow-kafka-offsets[demo]'",
        )
    return Check("embedded Kafka", "ok", "its jars will be fetched at the first start (45 MB)")


def check_port(port: int) -> Check:
    """``port`` is free on loopback."""
    if is_free(port):
        return Check("port", "ok", f"{port} on {LOOPBACK} is free")
    return Check(
        "port", "fail", f"{port} on {LOOPBACK} is taken", "stop what listens there, or choose another port"
    )


def check_writable(name: str, directory: Path, variable: str) -> Check:
    """
    Files can be made in ``directory``, or in what exists of its parents.

    :param name: what it is for.
    :param directory: where; it is not created.
    :param variable: environment variable that names another one.
    """
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = f"make it writable, or name another one in {variable}"
        return Check(name, "fail", f"{directory} cannot be written ({error.strerror})", remedy)
    return Check(name, "ok", str(directory))


def check_registry(timeout: float = _REGISTRY_TIMEOUT) -> Check:
    """The registry of Maven artifacts answers; the embedded Kafka's and Spark's jars come from there."""
    name = "Maven registry"
    outcome: list[SetupError | None] = []

    def probe() -> None:
        try:
            probe_registry(timeout)
        except SetupError as error:
            outcome.append(error)
        else:
            outcome.append(None)

    # A name server that does not answer heeds no time limit.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(timeout + 1)
    if not outcome:
        return Check(
            name, "fail", f"it did not answer within {timeout:.0f} s", "check the network and HTTPS_PROXY"
        )
    if outcome[0] is not None:
        found, _, remedy = str(outcome[0]).partition(": ")
        return Check(name, "fail", found, remedy)
    return Check(name, "ok", "it answers")
