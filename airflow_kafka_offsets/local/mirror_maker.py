"""Runs a real MirrorMaker 2 on this machine, which copies one Kafka cluster to another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import properties_text
from airflow_kafka_offsets.local.jars import (
    KAFKA_VERSION,
    LOGGING,
    cached_jars,
    listing_file,
    with_dependencies,
)
from airflow_kafka_offsets.local.process import SupervisedProcess, log_tail
from airflow_kafka_offsets.local.tools import java_command

_MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
_PARTS = ("connect-mirror", "connect-runtime")
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


def mirror_maker_classpath() -> list[Path]:
    """Return the jars of MirrorMaker 2 and Kafka Connect, in the version of the embedded Kafka."""
    title = f"MirrorMaker {KAFKA_VERSION}"
    resolve = with_dependencies([*(f"org.apache.kafka:{part}:{KAFKA_VERSION}" for part in _PARTS), LOGGING])
    return cached_jars("MirrorMaker", title, "about 40 MB", resolve, listing_file(title))


def mirror_settings(
    source: str, target: str, topics: Sequence[str], groups: Sequence[str] = ()
) -> dict[str, str]:
    """
    Return MirrorMaker's settings to mirror topics under their own names, with all intervals set to a second.

    MirrorMaker writes nothing to the source. It also copies the offsets of the groups.
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
        # MirrorMaker starts in half the time without a search of all jars.
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
    A MirrorMaker 2 in dedicated mode, with the settings of :func:`mirror_settings`.

    Use it as a context manager. MirrorMaker also ends when this process ends, even by SIGKILL.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str], *, heap: str = "256m") -> None:
        self.log = directory / "mirror.log"
        properties = directory / "mirror.properties"
        properties.write_text(properties_text(settings), encoding="utf-8")
        java = java_command(mirror_maker_classpath(), f"-Xmx{heap}", "-Dlog4j2.level=WARN")
        self._command = [*java, _MAIN, str(properties)]
        self._directory = directory
        self._process: SupervisedProcess | None = None

    def start(self) -> Self:
        """Start MirrorMaker, which begins to copy some seconds later."""
        self._process = SupervisedProcess(self._command, self.log, self._directory)
        return self

    def stop(self) -> None:
        """End MirrorMaker."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def kill(self) -> None:
        """Kill MirrorMaker with SIGKILL, like a crash; after a restart it copies some records again."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self.stop()

    @property
    def status(self) -> int | None:
        """Exit status; ``None`` while MirrorMaker is running."""
        return None if self._process is None else self._process.status

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait for a condition; a SetupError, with the end of the log, if it ends or the time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            if self.status is not None:
                break
            time.sleep(0.1)
        logged = log_tail(self.log, 40)
        raise SetupError(f"waited in vain for {what}; MirrorMaker (status {self.status}) logged:\n{logged}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()
