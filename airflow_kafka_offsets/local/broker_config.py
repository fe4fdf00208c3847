"""Configuration and ports of the embedded broker."""

from __future__ import annotations

import random
import re
import socket
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux and macOS give to outgoing connections, which come and go between two starts."""

_FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # A mistyped name should not become a topic.
    "auto.create.topics.enable": "false",
    # There is one broker to replicate to.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # Fewer partitions of internal topics and fewer threads: an earlier first response.
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # 128 MB of the heap by default.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker waits until its former registration expires: 9 s by default.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
}


def is_free(port: int) -> bool:
    """Return whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: the remains of closed connections do not keep a port.
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


def listener_port(configuration: Path) -> int | None:
    """Return the port of the clients' listener in a file of :func:`server_properties`, if there is one."""
    text = configuration.read_text(encoding="utf-8") if configuration.exists() else ""
    found = re.search(r"^advertised\.listeners=PLAINTEXT://[0-9.]+:([0-9]+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def server_properties(port: int, controller: int, data: Path) -> dict[str, str]:
    """Return the configuration of a single KRaft node, broker and controller, and their ports."""
    return {
        **_FIXED,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "log.dirs": str(data),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return ``properties`` as a Java properties file; keys have no special characters."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
