"""Addresses of brokers: what ``bootstrap.servers`` may contain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import UsageError

SERVERS = "bootstrap.servers"

_WITH_PORT = re.compile(r".*[^:\]]:[0-9]+|.*\]:[0-9]+")
# librdkafka adds this port to an address without one; Java's client refuses an address without a port.
_DEFAULT_PORT = 9092

# An address that librdkafka reads as it is written: a protocol, a name or IP address, and a port.
_ADDRESS = re.compile(
    r"(?:((?:SASL_)?(?:PLAINTEXT|SSL))://)?"
    r"(?:(?:[\w.-]+|\[[\w.:%-]+\])(?::0*[1-9][0-9]*)?|[0-9a-fA-F]*(?::[0-9a-fA-F.]*){2,})/?",
    re.IGNORECASE,
)


def check_servers(servers: object) -> None:
    """Refuse broker addresses with a user, a password or no valid port; errors do not repeat an address."""
    if isinstance(servers, str) and "@" in servers:
        raise UsageError(
            f"{SERVERS} contains an @, and may contain a password, which logs and errors would show; "
            "expected host:port of each broker, and the login in sasl.username and sasl.password"
        )
    # The client would keep 16 bits of it, and connect to another port.
    ports = re.findall(r":0*([0-9]+)\s*(?:,|$)", str(servers))
    if any(len(port) > 5 or int(port) > 65_535 for port in ports):
        raise UsageError(f"{SERVERS} has a port above 65535; expected host:port of each broker")


def check_addresses(config: Mapping[str, Any]) -> None:
    """Refuse broker addresses that librdkafka would report as a broker that does not answer."""
    servers = config.get(SERVERS)
    check_servers(servers)
    # The client skips empty ones.
    addresses = [address.strip() for address in str(servers or "").split(",") if address.strip()]
    if not addresses:
        raise UsageError(
            f"the Kafka configuration has no {SERVERS}; expected host:port of at least one broker: add it to "
            "the extra of the Kafka connection, or to the file or option that names the broker"
        )
    protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
    for number, address in enumerate(addresses, start=1):
        found = _ADDRESS.fullmatch(address)
        if not found:
            raise UsageError(
                f"address {number} in {SERVERS} is not host:port, such as kafka-1:9092: correct the Kafka "
                "connection, or the file or option"
            )
        if found[1] and found[1].upper() != protocol:
            raise UsageError(
                f"address {number} in {SERVERS} begins with another protocol than security.protocol, "
                f"{protocol}: remove the protocol with its ://, or set security.protocol to it"
            )


def with_port(server: str) -> str:
    """Return a broker's address with its port; librdkafka's default port if it has none."""
    server = server.strip()
    return server if _WITH_PORT.fullmatch(server) or not server else f"{server}:{_DEFAULT_PORT}"
