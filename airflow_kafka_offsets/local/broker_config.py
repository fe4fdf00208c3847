"""What does the embedded broker's configuration look like, and which ports does it get?"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux and macOS give to outgoing connections: those come and go between two starts."""

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# Every configuration object prints some hundred lines of itself.
logger.config.name = org.apache.kafka.common.config
logger.config.level = warn
"""


class Ports(NamedTuple):
    """Ports of one broker, all on loopback."""

    plain: int
    """For clients without authentication."""
    controller: int
    """For the KRaft quorum, which has one voter."""
    others: Mapping[str, int]
    """Listener -> port, for those that were asked for by name."""


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: the remains of closed connections do not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """
    Pick a port that is free now.

    :param taken: ports that are free but promised to somebody.
    """
    for port in random.sample(_PORTS, 200):
        if port not in taken and is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def choose_ports(plain: int | None, others: Iterable[str]) -> Ports:
    """
    Choose the ports of one broker.

    :param plain: the port for clients if it was asked for.
    :param others: names of further listeners.
    """
    ports = [plain or free_port()]
    names = ["CONTROLLER", *others]
    for _ in names:
        ports.append(free_port(ports))
    return Ports(ports[0], ports[1], dict(zip(names[1:], ports[2:], strict=True)))


def server_properties(
    ports: Ports, listeners: Mapping[str, str], data: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """
    Configuration of a single KRaft node that is broker and controller.

    :param ports: where it listens.
    :param listeners: further listeners -> their security protocol.
    :param data: its log directory.
    :param overrides: properties that are added, or win over those given here.
    """
    clients = {"PLAINTEXT": ports.plain, **ports.others}
    protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **listeners}
    advertised = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in clients.items())
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"{advertised},CONTROLLER://{LOOPBACK}:{ports.controller}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": ",".join(f"{name}:{used}" for name, used in protocols.items()),
        "log.dirs": str(data),
        # A name that is mistyped should not become a topic.
        "auto.create.topics.enable": "false",
        # There is one broker to replicate to.
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Fewer partitions of internal topics and fewer threads: an earlier first answer.
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # 128 MB of the heap by default.
        "log.cleaner.dedupe.buffer.size": "8388608",
        "group.initial.rebalance.delay.ms": "0",
        # After a crash the broker must wait until its former self counts as dead: 9 s by default.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "1000",
    }
    with_users = [name for name, used in listeners.items() if used.startswith("SASL_")]
    if with_users:
        properties["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
    for name in with_users:
        properties[f"listener.name.{name.lower()}.scram-sha-512.sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
    return {**properties, **overrides}


def properties_text(properties: Mapping[str, str]) -> str:
    """``properties`` as a Java properties file."""
    return "".join(f"{_escaped(key, ' =:')}={_escaped(value, '')}\n" for key, value in properties.items())


def _escaped(text: str, separators: str) -> str:
    for character in "\\" + separators:
        text = text.replace(character, "\\" + character)
    return text.replace("\n", "\\n")
