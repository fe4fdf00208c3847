"""A real MirrorMaker 2 on this machine, which copies one Kafka to another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import properties_text
from airflow_kafka_offsets.local.jars import (
    KAFKA_VERSION,
    LOGGING,
    Program,
    cached_jars,
    listing_file,
    silent,
    with_dependencies,
)
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

_MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
_PARTS = ("connect-mirror", "connect-runtime")
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


def mirror_maker_classpath(progress: Callable[[str], None] = silent) -> list[Path]:
    """Return the jars of MirrorMaker 2, of the embedded Kafka's version, and of Kafka Connect."""
    title = f"MirrorMaker {KAFKA_VERSION}"
    resolve = with_dependencies([*(f"org.apache.kafka:{part}:{KAFKA_VERSION}" for part in _PARTS), LOGGING])
    listing = listing_file().with_name(f"{title.replace(' ', '-').lower()}.classpath")
    return cached_jars(Program("MirrorMaker", title, "about 40 MB", resolve), listing, progress)


def mirror_settings(
    source: str, target: str, topics: Sequence[str], groups: Sequence[str] = ()
) -> dict[str, str]:
    """
    Return MirrorMaker's settings to mirror topics under their own names; it writes nothing to the source.

    :param source: ``host:port`` of the cluster that is mirrored.
    :param target: ``host:port`` of the mirror.
    :param topics: names, or patterns.
    :param groups: groups whose offsets are translated too.
    """
    topics_of_its_own = ("offset-syncs", "checkpoints", "heartbeats")
    one_copy = ("replication", *(f"{name}.topic.replication" for name in topics_of_its_own))
    storage = ("config", "offset", "status")
    return {
        "clusters": "source, target",
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source->target.enabled": "true",
        "source->target.topics": ",".join(topics),
        "source->target.groups": ",".join(groups),
        "replication.policy.class": IDENTITY,
        "sync.group.offsets.enabled": "true" if groups else "false",
        "emit.checkpoints.enabled": "true" if groups else "false",
        "sync.topic.acls.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "offset-syncs.topic.location": "target",
        "tasks.max": "1",
        # Without a search of all jars it starts in half the time.
        "plugin.discovery": "service_load",
        **{f"{name}.factor": "1" for name in one_copy},
        **{f"{name}.storage.replication.factor": "1" for name in storage},
        **{f"{name}.storage.partitions": "1" for name in storage[1:]},
        **{
            f"{name}.interval.seconds": "1"
            for name in ("refresh.topics", "refresh.groups", "sync.group.offsets", "emit.checkpoints")
        },
    }


class MirrorMaker:
    """
    A MirrorMaker 2 in dedicated mode, with all intervals set to a second.

    Use it as a context manager. It also ends with this process, even by SIGKILL.

    :param directory: for its properties and its log.
    :param settings: see :func:`mirror_settings`.
    :param heap: the Java heap, as in ``-Xmx``.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        heap: str = "256m",
        progress: Callable[[str], None] = silent,
    ) -> None:
        self.log = directory / "mirror.log"
        properties = directory / "mirror.properties"
        properties.write_text(properties_text(settings), encoding="utf-8")
        quick = [f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN"]
        classpath = os.pathsep.join(map(str, mirror_maker_classpath(progress)))
        self._command = [str(find_java().path), *quick, "-cp", classpath, _MAIN, str(properties)]
        self._directory = directory
        self._process: SupervisedProcess | None = None

    def start(self) -> Self:
        """Start MirrorMaker, which begins to copy some seconds later."""
        self._process = SupervisedProcess(self._command, self.log, self._directory)
        return self

    def stop(self) -> None:
        """Stop MirrorMaker."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def kill(self) -> None:
        """Kill MirrorMaker; after its next start it copies some records again, as after a crash."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self.stop()

    @property
    def status(self) -> int | None:
        """Exit status; ``None`` while it runs."""
        return None if self._process is None else self._process.status

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """
        Wait until a condition holds.

        :raises SetupError: if MirrorMaker ends before the condition holds, or the time is up; the error
            shows the end of the log.
        """
        for _ in _ticks(seconds):
            if condition():
                return
            if self.status is not None:
                break
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-3_000:]
        raise SetupError(f"waited for {what} in vain; MirrorMaker (status {self.status}) logged:\n{tail}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)
