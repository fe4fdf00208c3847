"""
Finds out why a listener refuses a connection, where the Kafka client cannot tell.

The client has the same error text for a certificate that has expired, has an unknown authority, or is for
another host. It has no text for TLS or a login that the listener requires but the connection does not use. So
the probe asks the listener: with a TLS handshake in Python, and with the first request of a login
(``SaslHandshake``), which a broker answers before authentication. The probe sends no credentials.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from airflow_kafka_offsets.kafka.failures import Deadline, Failure
from airflow_kafka_offsets.kafka.oauth_token import probe_token_service
from airflow_kafka_offsets.model.broker_addresses import SERVERS

_LONGEST = 2.0
"""Maximum seconds of a probe."""

_NOT_VERIFIED = "certificate verify failed"
_NAMED = re.compile(r"\w+://(\S+:\d+)/")
# The Kafka client's default, for an address without a port.
_DEFAULT_PORT = 9092

_CERTIFICATES = (
    ((10,), ", or one that signed it, has expired", "the broker needs a new one; check this clock too"),
    ((9,), " is not valid yet", "correct the clock of this machine, or the certificate"),
    (
        (62, 64),
        " is for another name ({why})",
        "use a name in the certificate, in bootstrap.servers and in the broker's "
        "advertised.listeners, or renew the certificate for this name too",
    ),
    (
        (2, 18, 19, 20, 21),
        " is not signed by {trusted} ({why})",
        "set ssl.ca.location to a PEM file with the authority that signed it",
    ),
)
"""OpenSSL's numbers of verification results, their meaning for a certificate, and the remedy."""

# Kafka's number of the request, a version that every broker since 1.0 supports, and an id to recognize the
# response by.
_SASL_HANDSHAKE, _VERSION, _CORRELATION = 17, 1, 1
# Error codes of Kafka: UNSUPPORTED_SASL_MECHANISM and ILLEGAL_SASL_STATE.
_UNSUPPORTED_MECHANISM, _NO_LOGIN_HERE = 33, 34
# In bytes: a longer response is not Kafka's; other bytes were read as its length.
_LONGEST_ANSWER = 10_000


class _Login(NamedTuple):
    wanted: bool
    mechanisms: tuple[str, ...]


def find_cause(config: Mapping[str, Any], errors: Sequence[str], timeout: float) -> Failure | None:
    """
    Return why a connection has no answer, if the client does not report it; ``None`` if unknown.

    :param errors: the client's error texts so far; the probe asks the broker that they name last.
    """
    whole = Deadline(timeout)
    if (failure := probe_token_service(config, min(timeout, _LONGEST))) is not None:
        return failure
    named = [found[1] for text in errors for found in _NAMED.finditer(text)]
    unverified = any(_NOT_VERIFIED in text for text in errors)
    deadline = Deadline(min(whole.seconds_left, _LONGEST))
    for address in dict.fromkeys([*reversed(named), *str(config[SERVERS]).split(",")]):
        try:
            host, port = _host_and_port(address)
            return (_probe_certificate if unverified else _probe_protocol)(config, host, port, deadline)
        except (OSError, ValueError, OverflowError):  # noqa: PERF203  # ask the next broker
            # Not reachable, or not an address: the client reports that better.
            continue
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].strip().rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else (port, _DEFAULT_PORT)


def _probe_certificate(config: Mapping[str, Any], host: str, port: int, deadline: Deadline) -> Failure | None:
    authority, pem = str(config.get("ssl.ca.location") or ""), config.get("ssl.ca.pem") or None
    of_file = authority if Path(authority).is_file() else None
    of_directory = authority if Path(authority).is_dir() else None
    context = ssl.create_default_context(cafile=of_file, capath=of_directory, cadata=pem)
    # Verify like the Kafka client: Python is stricter from 3.13 on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = config.get("ssl.endpoint.identification.algorithm") != "none"
    with _connect(host, port, deadline) as plain, suppress(OSError):
        try:
            context.wrap_socket(plain, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            of_machine = "the authorities that this machine trusts"
            trusted = f"ssl.ca.location={authority}" if authority else of_machine
            return _about_certificate(f"{host}:{port}", error, "ssl.ca.pem" if pem else trusted)
    return None


def _about_certificate(address: str, error: ssl.SSLCertVerificationError, trusted: str) -> Failure:
    found, remedy = next(
        (each[1:] for each in _CERTIFICATES if error.verify_code in each[0]),
        (" was not accepted ({why})", "correct ssl.ca.location, or the certificate"),
    )
    found = found.format(why=error.verify_message.rstrip("."), trusted=trusted)
    return Failure("_SSL", f"the certificate of {address}{found}", remedy)


def _probe_protocol(config: Mapping[str, Any], host: str, port: int, deadline: Deadline) -> Failure | None:
    configured = str(config.get("security.protocol") or "plaintext").upper()
    mechanism = str(config.get("sasl.mechanisms") or config.get("sasl.mechanism") or "SCRAM-SHA-512")
    # This only checks whether the listener speaks TLS: the other probe checks the certificate, and no
    # credentials are sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    login: _Login | None = None
    tls = False
    with (
        # Half of the time: a listener without TLS may wait for more data.
        _connect(host, port, Deadline(deadline.seconds_left / 2)) as plain,
        suppress(OSError),
        context.wrap_socket(plain, server_hostname=host) as over_tls,
    ):
        tls = True
        login = _ask(over_tls, mechanism)
    if not tls:
        with _connect(host, port, deadline) as plain:
            login = _ask(plain, mechanism)
        if login is None:
            return None
    wanted = login.wanted if login is not None else configured.startswith("SASL_")
    listener = ("SASL_" if wanted else "") + ("SSL" if tls else "PLAINTEXT")
    if listener == configured:
        return None
    change = f"set security.protocol={listener}"
    if wanted and not configured.startswith("SASL_"):
        offered = f" ({', '.join(login.mechanisms)})" if login is not None and login.mechanisms else ""
        change += f", sasl.mechanisms{offered} and what it needs, such as sasl.username and sasl.password"
    elsewhere = "name another listener in bootstrap.servers"
    # Suggest to give up TLS only as the last remedy.
    remedies = [elsewhere, change] if configured.endswith("SSL") and not tls else [change, elsewhere]
    return Failure(
        "_SSL" if tls != configured.endswith("SSL") else "_AUTHENTICATION",
        f"the listener at {host}:{port} is {listener}, and the connection has security.protocol={configured}",
        ", or ".join(remedies),
    )


def _connect(host: str, port: int, deadline: Deadline) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=max(0.1, deadline.seconds_left))
    sock.settimeout(max(0.1, deadline.seconds_left))
    return sock


def _ask(stream: socket.socket, mechanism: str) -> _Login | None:
    """Ask for the login mechanisms; ``None`` if the listener is not Kafka, or does not answer."""
    name = mechanism.encode()
    header = struct.pack(">hhih", _SASL_HANDSHAKE, _VERSION, _CORRELATION, -1)
    request = header + struct.pack(">h", len(name)) + name
    with suppress(OSError, ValueError, struct.error):
        stream.sendall(struct.pack(">i", len(request)) + request)
        with stream.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            if 0 < size < _LONGEST_ANSWER:
                return _login(BytesIO(answers.read(size)))
    return None


def _login(answer: BytesIO) -> _Login | None:
    correlation, code, count = struct.unpack(">ihi", answer.read(10))
    if correlation != _CORRELATION or code not in (0, _UNSUPPORTED_MECHANISM, _NO_LOGIN_HERE):
        return None
    mechanisms = (answer.read(*struct.unpack(">h", answer.read(2))).decode() for _ in range(count))
    return _Login(code != _NO_LOGIN_HERE, tuple(mechanisms))
