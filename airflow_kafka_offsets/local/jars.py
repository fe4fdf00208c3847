"""
Which jars make up the embedded Kafka, and where are they?

They are resolved and fetched once by jgo (no Maven needed) into the user's cache directory. A list of
what there is, written when the last jar has arrived, makes every later start independent of jgo and of
the network.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.directories import cache_directory
from airflow_kafka_offsets.local.lock import one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jgo.maven import MavenContext

    Progress = Callable[[str], None]

KAFKA_VERSION = "4.1.0"
COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    # The binding of slf4j 1.7, which Kafka's jars are built for: with log4j-slf4j2-impl the broker dies silently.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
# Kafka Connect and its web server: only the plugin tools use them, and they would double the download.
_EXCLUDED = ("org.apache.kafka", "connect-runtime")

_NETWORK_REMEDY = (
    "check the network and the proxy settings (HTTPS_PROXY), or name a mirror of Maven Central in section "
    "[repositories] of jgo's settings file ~/.config/jgo.conf"
)
_REQUEST_TIMEOUT = 30
_TIME_LIMIT = 900.0
_REPORT_EVERY = 3.0


def kafka_classpath(progress: Progress | None = None, directory: Path | None = None) -> list[Path]:
    """
    Jars of the embedded Kafka, fetched if they are not there yet.

    :param progress: called with a line of text now and then while something is fetched.
    :param directory: where they are kept; default: ``jars`` in the cache directory.
    :return: absolute paths; together they are the class path of the broker and of its tools.
    :raises SetupError: if they have to be fetched and jgo is missing, or they cannot be.
    """
    directory = directory or cache_directory() / "jars"
    listing = listing_file(directory)
    if (jars := read_listing(listing)) is not None:
        return jars
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(directory / "lock", "fetching Kafka's jars", _TIME_LIMIT, progress):
            # Another process may have fetched them while this one waited.
            if (jars := read_listing(listing)) is None:
                jars = _fetch(directory / "repository", progress or silent)
                write_listing(listing, jars)
    except OSError as error:
        # Of the network, jgo's errors were taken care of: what is left is the disk.
        raise SetupError(
            f"Kafka's jars cannot be written to {directory} ({error}): "
            "make it writable, or name another directory in AIRFLOW_KAFKA_OFFSETS_CACHE"
        ) from error
    return jars


def listing_file(directory: Path | None = None) -> Path:
    """
    File that lists the jars, once all are there.

    :param directory: as for :func:`kafka_classpath`.
    """
    return (directory or cache_directory() / "jars") / f"kafka-{KAFKA_VERSION}.classpath"


def silent(line: str) -> None:
    """Report no progress."""


def read_listing(listing: Path) -> list[Path] | None:
    """Jars that a listing names, ``None`` unless every one is still there in its full size."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
        jars = []
        for line in lines:
            size, name = line.split(" ", 1)
            jar = listing.parent / name
            if jar.stat().st_size != int(size):
                return None
            jars.append(jar)
    except (OSError, ValueError):
        return None
    return jars or None


def write_listing(listing: Path, jars: list[Path]) -> None:
    """Write sizes and names of ``jars``, relative to the listing, so that readers see all of it or nothing."""
    text = "".join(f"{jar.stat().st_size} {jar.relative_to(listing.parent)}\n" for jar in jars)
    draft = listing.with_suffix(f".{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(listing)


def _fetch(repository: Path, progress: Progress) -> list[Path]:
    _require_jgo()
    _remove_cut_off_files(repository)
    meter = _Meter(progress)
    progress(f"fetching Apache Kafka {KAFKA_VERSION} (about 45 MB, once)")
    try:
        context = _maven(repository, _REQUEST_TIMEOUT, meter.file)
        excluded = [context.project(*_EXCLUDED)]
        wanted = [context.create_dependency(name, exclusions=excluded) for name in COORDINATES]
        for dependency in wanted:
            # Otherwise jgo lets log4j's parent POM, which manages versions for its own tests, decide on
            # kafka-clients: 3.8.0 beside a broker of 4.1.0.
            dependency.raw = True
        named, others = context.resolver.resolve(wanted)
        artifacts = [d.artifact for d in (*named, *others) if d.scope in (None, "compile", "runtime")]
        meter.expected = len(artifacts)
        jars = [Path(artifact.resolve()) for artifact in artifacts]
    except SetupError:
        raise
    except Exception as error:  # jgo passes on whatever requests, its XML parser or itself raise
        raise SetupError(
            f"Kafka's jars could not be fetched ({_without_address(error)}): {_NETWORK_REMEDY}; "
            "what has arrived is kept, so trying again goes on from there"
        ) from error
    progress(f"Apache Kafka {KAFKA_VERSION} is complete ({meter.megabytes:.0f} MB fetched)")
    return jars


def probe_registry(timeout: float) -> None:
    """
    Fetch the smallest file there is from the registry.

    :param timeout: seconds to wait for an answer.
    :raises SetupError: if it does not come, or jgo is missing.
    """
    _require_jgo()
    group, name, version = COORDINATES[0].split(":")
    with tempfile.TemporaryDirectory() as directory:
        try:
            context = _maven(Path(directory), max(1, int(timeout)), None)
            context.project(group, name).at_version(version).artifact(packaging="pom").resolve()
        except Exception as error:
            raise SetupError(f"it does not answer ({_without_address(error)}): {_NETWORK_REMEDY}") from error


def _require_jgo() -> None:
    if importlib.util.find_spec("jgo") is None:
        raise SetupError(
            "Kafka's jars are not on this machine yet and jgo, which fetches them, is not installed: "
            "pip install 'airflow-kafka-offsets[demo]'"
        )


def _maven(
    repository: Path,
    timeout: int,
    on_file: Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]] | None,
) -> MavenContext:
    # It is not needed once the jars are there.
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    return MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        # Not ~/.m2: a download that breaks off there would break Spark's own resolver too.
        repo_cache=repository,
        # Registries that the user has told jgo about come first, as with jgo itself.
        remote_repos={**GlobalSettings.load().repositories, **MavenContext().remote_repos},
        timeout=timeout,
    )


def _without_address(error: BaseException) -> str:
    """Name the kinds of errors, without their texts: those hold the registry's address and what is in it."""
    kinds = []
    cause: BaseException | None = error
    while cause is not None:
        kinds.append(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return " from ".join(dict.fromkeys(kinds))


def _remove_cut_off_files(repository: Path) -> None:
    """Remove what a killed process left half-written: jgo takes any file that exists for complete."""
    for jar in repository.rglob("*.jar"):
        if not zipfile.is_zipfile(jar):
            jar.unlink()
    for pom in repository.rglob("*.pom"):
        if not pom.read_bytes().rstrip().endswith(b">"):
            pom.unlink()


class _Meter:
    """Counts what arrives, says so every few seconds, and ends a download that takes forever."""

    def __init__(self, progress: Progress) -> None:
        self.expected: int | None = None
        self._progress = progress
        self._bytes = 0
        self._jars = 0
        self._started = self._reported = time.monotonic()

    @property
    def megabytes(self) -> float:
        return self._bytes / 1_000_000

    @contextlib.contextmanager
    def file(self, name: str, _size: int) -> Iterator[Callable[[int], None]]:
        """Count one file, as jgo's progress callback: it gives the file's name and size in bytes."""

        def update(arrived: int) -> None:
            self._bytes += arrived
            now = time.monotonic()
            if now - self._started > _TIME_LIMIT:
                raise SetupError(
                    f"Kafka's jars were not complete after {_TIME_LIMIT / 60:.0f} minutes "
                    f"({self.megabytes:.0f} MB): try again, what has arrived is kept"
                )
            if now - self._reported >= _REPORT_EVERY:
                self._reported = now
                self._progress(self._line(name))

        self._jars += name.endswith(".jar")
        yield update

    def _line(self, name: str) -> str:
        if self.expected is None:
            return f"finding out which jars are needed: {name}"
        return f"jar {self._jars} of {self.expected}: {name} ({self.megabytes:.0f} MB so far)"


def classpath_text(jars: list[Path]) -> str:
    """Join ``jars`` into the value of Java's ``-cp``."""
    return os.pathsep.join(str(jar) for jar in jars)
