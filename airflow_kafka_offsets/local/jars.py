"""
Jars of the embedded Kafka and of servers in tests, fetched once by jgo into the user's cache directory.

A listing is written after the last jar; with it, later starts need neither jgo nor the network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.local.cache import cache_directory, lock_file

if TYPE_CHECKING:
    from jgo.maven import MavenContext

log = logging.getLogger(__name__)

# The version that the tests use by default; the test matrix sets others.
KAFKA_VERSION = os.environ.get("AIRFLOW_KAFKA_OFFSETS_KAFKA_VERSION", "4.1.0")
# The tools include their own libraries, and work with brokers of any version: 4.4 was published without them.
_TOOLS = "4.1.0"
# The binding for slf4j 1.7, for which Kafka's jars are built: with log4j-slf4j2-impl the broker ends
# silently.
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"
# Seconds for 45 MB: a network below half a megabit a second counts as one that hangs.
_TIME_LIMIT = 900.0
# Bytes; larger files get a separate progress line.
_LARGE = 2_000_000


def kafka_classpath() -> list[Path]:
    """Return the jars of the embedded Kafka; fetch missing ones, or raise a SetupError."""
    resolve = with_dependencies((f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", LOGGING))
    return cached_jars("Kafka", f"Apache Kafka {KAFKA_VERSION}", "about 45 MB", resolve, listing_file())


def tools_classpath() -> list[Path]:
    """Return the jars of Kafka's command line tools, see :func:`kafka_classpath`."""
    # Without Kafka Connect and its web server: only the plugin tools use them, and they would double the
    # download.
    excluded = [("org.apache.kafka", "connect-runtime")]
    resolve = with_dependencies((f"org.apache.kafka:kafka-tools:{_TOOLS}", LOGGING), excluded)
    title, listing = f"the command line tools of Kafka {_TOOLS}", listing_file(f"Kafka tools for {_TOOLS}")
    return cached_jars("Kafka", title, "about 30 MB", resolve, listing)


def cached_jars(
    owner: str, title: str, size: str, resolve: Callable[[MavenContext], list[Path]], listing: Path
) -> list[Path]:
    """
    Return the jars of a listing; fetch missing ones into its directory, or raise a SetupError.

    :param owner: the program's name, as in "Kafka's jars"; ``title`` is its name with the version.
    :param resolve: finds the jars and fetches them.
    """
    directory = listing.parent
    if (jars := read_listing(listing)) is not None:
        return jars
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with lock_file(directory / "lock", f"fetching {owner}'s jars", _TIME_LIMIT):
            # Another process may have fetched the jars in the meantime.
            if (jars := read_listing(listing)) is None:
                jars = _fetch(owner, title, size, resolve, directory / "repository")
                write_listing(listing, jars)
    except OSError as error:
        raise SetupError(
            f"{owner}'s jars cannot be written to {directory} ({error}): make it writable, or name "
            "another directory in AIRFLOW_KAFKA_OFFSETS_CACHE"
        ) from error
    return jars


def listing_file(name: str = f"Kafka {KAFKA_VERSION}") -> Path:
    """Return the file that lists the jars of a program after all were fetched."""
    return cache_directory() / "jars" / f"{name.replace(' ', '-').lower()}.classpath"


def read_listing(listing: Path) -> list[Path] | None:
    """Return the jars of a listing, ``None`` unless every jar exists in its full size."""
    try:
        lines = (line.split(" ", 1) for line in listing.read_text(encoding="utf-8").splitlines())
        jars = [(listing.parent / name, int(size)) for size, name in lines]
        whole = all(jar.stat().st_size == size for jar, size in jars)
    except (OSError, ValueError):
        return None
    return [jar for jar, _ in jars] if jars and whole else None


def write_listing(listing: Path, jars: list[Path]) -> None:
    """Write sizes and names of ``jars``, relative to the listing, atomically."""
    text = "".join(f"{jar.stat().st_size} {jar.relative_to(listing.parent)}\n" for jar in jars)
    # The name contains this process's id: two processes that fetch at once write two drafts.
    draft = listing.with_suffix(f".{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(listing)


def _fetch(
    owner: str, title: str, size: str, resolve: Callable[[MavenContext], list[Path]], repository: Path
) -> list[Path]:
    try:
        from jgo.config import GlobalSettings
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise SetupError(
            f"jgo, which fetches {owner}'s jars, is not installed: pip install 'airflow-kafka-offsets[demo]'"
        ) from error
    _remove_partial_files(repository)
    log.info("fetching %s (%s, once)", title, size)
    try:
        context = MavenContext(
            resolver=PythonResolver(progress_callback=_reporter()),
            # Not ~/.m2: a partial download there would also break Spark's own resolver.
            repo_cache=repository,
            # The user's mirrors come first, as in jgo itself.
            remote_repos={**GlobalSettings.load().repositories, **MavenContext().remote_repos},
            timeout=30,
        )
        jars = resolve(context)
    # Any exception of requests or jgo's XML parser. Its text may contain an address with credentials.
    except Exception as error:
        raise SetupError(
            f"{owner}'s jars could not be fetched ({type(error).__name__}): check the network and "
            "the proxy settings (HTTPS_PROXY), or name a mirror of Maven Central in section [repositories] "
            "of jgo's settings file ~/.config/jgo.conf; finished files are kept, so a retry continues"
        ) from error
    log.info("fetched %s", title)
    return jars


def with_dependencies(
    coordinates: Sequence[str], excluded: Sequence[tuple[str, str]] = ()
) -> Callable[[MavenContext], list[Path]]:
    """Return a resolver of artifacts in these exact versions, with all their runtime dependencies."""

    def resolve(context: MavenContext) -> list[Path]:
        exclusions = [context.project(*each) for each in excluded]
        wanted = [context.create_dependency(name, exclusions=exclusions) for name in coordinates]
        for dependency in wanted:
            # Otherwise log4j's parent POM would set the version of kafka-clients: 3.8.0 beside a broker of
            # 4.1.0.
            dependency.raw = True
        named, others = context.resolver.resolve(wanted)
        needed = [each for each in (*named, *others) if each.scope in (None, "compile", "runtime")]
        return [Path(each.artifact.resolve()) for each in needed]

    return resolve


def _remove_partial_files(repository: Path) -> None:
    """Remove incomplete files of a killed process: jgo takes every existing file for complete."""
    for file in repository.rglob("*.*"):
        if (file.suffix == ".jar" and not zipfile.is_zipfile(file)) or (
            file.suffix == ".pom" and not file.read_bytes().rstrip().endswith(b">")
        ):
            file.unlink()


def _reporter() -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """Return jgo's callback for a file: it reports large files, and ends a download that takes too long."""
    deadline = Deadline(_TIME_LIMIT)

    def check(_arrived: int) -> None:
        if not deadline.seconds_left:
            raise TimeoutError(f"the jars were not complete after {_TIME_LIMIT:.0f} s")

    @contextlib.contextmanager
    def report(name: str, size: int) -> Iterator[Callable[[int], None]]:
        if size >= _LARGE:
            log.info("fetching %s (%.0f MB)", name, size / 1_000_000)
        yield check

    return report
