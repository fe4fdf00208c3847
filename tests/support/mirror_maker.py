"""Two Kafkas, of which a real MirrorMaker 2 has copied one to the other, with lower offsets."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from java_programs import mirror_maker

from airflow_kafka_offsets.local.broker_config import properties_text
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"


class Clusters(NamedTuple):
    """``host:port`` of the cluster that is mirrored, and of its mirror."""

    source: str
    target: str


@contextmanager
def mirroring(
    directory: Path, clusters: Clusters, topics: Sequence[str], groups: Sequence[str]
) -> Iterator[None]:
    """
    Mirror topics and groups under their own names until the ``with`` block ends.

    It writes nothing to the source. Whatever interval there is, is a second.
    """
    properties, log = directory / "mirror.properties", directory / "mirror.log"
    one_copy = ("replication", "offset-syncs.topic.replication", "checkpoints.topic.replication")
    storage = ("config", "offset", "status")
    settings = {
        "clusters": "source, target",
        "source.bootstrap.servers": clusters.source,
        "target.bootstrap.servers": clusters.target,
        "source->target.enabled": "true",
        "source->target.topics": ",".join(topics),
        "source->target.groups": ",".join(groups),
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "sync.group.offsets.enabled": "true",
        "sync.topic.acls.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "offset-syncs.topic.location": "target",
        "offset.lag.max": "0",
        "tasks.max": "1",
        # Without a search of all jars it is there in half the time.
        "plugin.discovery": "service_load",
        **{f"{name}.factor": "1" for name in one_copy},
        **{f"{name}.storage.replication.factor": "1" for name in storage},
        **{f"{name}.storage.partitions": "1" for name in storage[1:]},
        **{
            f"{name}.interval.seconds": "1"
            for name in ("refresh.topics", "refresh.groups", "sync.group.offsets", "emit.checkpoints")
        },
    }
    properties.write_text(properties_text(settings))
    quick = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN"]
    classpath = os.pathsep.join(map(str, mirror_maker()))
    command = [str(find_java().path), *quick, "-cp", classpath, MAIN, str(properties)]
    process = SupervisedProcess(command, log, directory)
    try:
        yield
    except AssertionError as error:
        error.add_note(f"MirrorMaker, status {process.status}:\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        process.end()
