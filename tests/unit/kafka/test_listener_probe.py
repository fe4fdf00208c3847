"""What the probe makes of a listener's response to its question about logins."""

import socket
import struct

import pytest

from airflow_kafka_offsets.kafka.listener_probe import _ask


def ask(body: bytes):
    """Ask a listener that responds with these bytes after the correlation id."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(struct.pack(">ii", 4 + len(body), 1) + body)
        return _ask(ours, "PLAIN")


def mechanisms(count: int, *names: bytes) -> bytes:
    return struct.pack(">i", count) + b"".join(struct.pack(">h", len(name)) + name for name in names)


@pytest.mark.parametrize(
    ("code", "wanted", "offered"), [(0, True, ()), (33, True, ("PLAIN", "SCRAM-SHA-512")), (34, False, ())]
)
def test_a_response_tells_whether_a_login_is_wanted_and_which(code, wanted, offered):
    names = [name.encode() for name in offered]
    assert ask(struct.pack(">h", code) + mechanisms(len(names), *names)) == (wanted, offered)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">h", 17) + mechanisms(0),
        struct.pack(">h", 0) + mechanisms(2, b"PLAIN"),
        struct.pack(">h", 0) + mechanisms(1, b"\xff"),
        # A length of -2 would lead back to the same length, once for each of the mechanisms.
        struct.pack(">hih", 0, 100_000, -2),
    ],
)
def test_another_response_is_no_response_of_kafka(body):
    assert ask(body) is None
