"""Configuration and ports of the embedded broker."""

from __future__ import annotations

import json
import random
import re
import socket
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from airflow_kafka_offsets.errors import SetupError

# Not "localhost", which may be ::1, where the broker does not listen.
LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535
CONTROLLER = "CONTROLLER"

_PORTS = range(20_000, 32_000)
"""Below the ports of outgoing connections on Linux and macOS, which could take a port between two starts."""

_FIXED = {
    "process.roles": "broker,controller",
    "controller.listener.names": CONTROLLER,
    # A mistyped name must not create a topic.
    "auto.create.topics.enable": "false",
    # Fewer partitions of internal topics and fewer threads make the first response faster.
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # The default is 128 MB of the heap.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker waits until its earlier registration expires: 9 s by default.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    # By default, two empty records a second, which every node reads: a third of an idle broker's CPU time.
    "metadata.max.idle.interval.ms": "5000",
}


def is_free(port: int) -> bool:
    """Return whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As in Java: remains of closed connections do not block a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """Pick a port that is free now and not in ``taken``."""
    for port in random.sample(_PORTS, 1000):
        if port not in taken and is_free(port):
            return port
    raise SetupError(f"{LOOPBACK} has no free port from {_PORTS.start} to {_PORTS.stop}: free some")


def listener_ports(configuration: Path) -> dict[str, int]:
    """Return the port of each listener in a file of :func:`server_properties`; empty without a file."""
    text = configuration.read_text(encoding="utf-8") if configuration.exists() else ""
    listeners = re.search(r"^listeners=(.*)$", text, re.MULTILINE)
    found = re.findall(r"(\w+)://[0-9.]+:([0-9]+)", listeners[1] if listeners else "")
    return {name: int(port) for name, port in found}


def server_properties(
    number: int, ports: Sequence[Mapping[str, int]], protocols: Mapping[str, str], data: Path
) -> dict[str, str]:
    """
    Return the configuration of a KRaft node that is both broker and controller.

    :param ports: for each node, the port of each listener, including CONTROLLER.
    :param protocols: listener -> security protocol; brokers communicate on the first listener.
    """
    listeners = {name: f"{name}://{LOOPBACK}:{port}" for name, port in ports[number - 1].items()}
    # With three replicas one broker may fail.
    copies = min(len(ports), 3)
    in_sync = str(max(1, copies - 1))
    return {
        **_FIXED,
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{node}@{LOOPBACK}:{port[CONTROLLER]}" for node, port in enumerate(ports, 1)
        ),
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(listeners[name] for name in protocols if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
        "inter.broker.listener.name": next(iter(protocols)),
        "default.replication.factor": str(copies),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": in_sync,
        "log.dirs": str(data),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return ``properties`` as a Java properties file; keys have no special characters."""
    # Java reads it as ISO 8859-1, and knows the escapes of JSON.
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in properties.items())


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, as a whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as draft:
        try:
            draft.write(content)
            draft.flush()
            Path(draft.name).replace(file)
        except BaseException:
            Path(draft.name).unlink()
            raise
