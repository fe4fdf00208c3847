"""
The minimum cost of a request: Kafka's protocol over one socket, parsed in Python, without any client.

Without security and error handling: it is a lower bound for comparison, not for use.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from airflow_kafka_offsets.model.offsets import TopicPartition

LATEST, EARLIEST = -1, -2
LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH = 2, 8, 9
_CLIENT = b"raw"


class Connection:
    """A socket to one broker; responses come in the order of the requests."""

    def __init__(self, server: str) -> None:
        host, _, port = server.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count()

    def send(self, key: int, version: int, body: bytes, *, flexible: bool = False) -> None:
        header = struct.pack(">hhih", key, version, next(self._numbers), len(_CLIENT)) + _CLIENT
        request = header + (b"\0" if flexible else b"") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)[4:]

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("the broker closed the connection")
            view = view[got:]
        return bytes(data)


class RawClient:
    """One persistent connection; the broker is leader of all partitions and coordinator of all groups."""

    def __init__(self, servers: str) -> None:
        self._connection = Connection(servers)

    def committed(
        self, groups: Mapping[str, Sequence[TopicPartition] | None]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Return the commits of many groups in one request; ``None`` means all partitions of a group."""
        body = bytearray(_uvarint(len(groups) + 1))
        for group_id, partitions in groups.items():
            body += _compact(group_id)
            topics = _by_topic(partitions or ())
            body += _uvarint(0 if partitions is None else len(topics) + 1)
            for topic, numbers in topics.items():
                body += _compact(topic) + _uvarint(len(numbers) + 1)
                body += struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
            body += b"\0"
        response = Response(self._ask(OFFSET_FETCH, 8, bytes(body) + b"\0\0", flexible=True), 1 + 4)
        found: dict[str, dict[TopicPartition, int]] = {}
        for _ in range(response.uvarint() - 1):
            commits = found.setdefault(response.compact(), {})
            for _ in range(response.uvarint() - 1):
                topic = response.compact()
                for _ in range(response.uvarint() - 1):
                    number, offset, _ = response.take(">iqi")
                    response.compact()
                    response.take(">hx")
                    if offset >= 0:
                        commits[TopicPartition(topic, number)] = offset
                response.take("x")
            response.take(">hx")
        return found

    def offsets(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Return the offsets at a time, or at :data:`EARLIEST` or :data:`LATEST`, in one request."""
        return parse_offsets(self._ask(LIST_OFFSETS, 2, list_offsets(partitions, timestamp)))

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit in one request, and check each partition's response."""
        body = bytearray(text_of(group_id) + struct.pack(">i", -1) + text_of("") + struct.pack(">h", -1))
        topics = _by_topic(offsets)
        body += struct.pack(">i", len(topics))
        for topic, numbers in topics.items():
            body += text_of(topic) + struct.pack(">i", len(numbers))
            for number in numbers:
                body += struct.pack(">iqih", number, offsets[TopicPartition(topic, number)], -1, 0)
        response = Response(self._ask(OFFSET_COMMIT, 7, bytes(body)), 4)
        for _ in range(response.take(">i")[0]):
            response.text()
            if any(error for _, error in response.array(">ih")):
                raise RuntimeError("a commit was refused")

    def lag(self, groups: Mapping[str, Sequence[TopicPartition] | None]) -> int:
        """Return the total lag: commits, log starts and log ends, each in one request."""
        commits = self.committed(groups)
        partitions = {tp for found in commits.values() for tp in found}
        starts, ends = self.offsets(partitions, EARLIEST), self.offsets(partitions, LATEST)
        return sum(ends[tp] - max(at, starts[tp]) for found in commits.values() for tp, at in found.items())

    def _ask(self, key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        self._connection.send(key, version, body, flexible=flexible)
        return self._connection.receive()


def list_offsets(partitions: Iterable[TopicPartition], timestamp: int) -> bytes:
    """Return the body of a request for the offsets at a time, in version 2."""
    topics = _by_topic(partitions)
    body = bytearray(struct.pack(">ibi", -1, 0, len(topics)))
    for topic, numbers in topics.items():
        body += text_of(topic) + struct.pack(">i", len(numbers))
        body += b"".join(struct.pack(">iq", number, timestamp) for number in numbers)
    return bytes(body)


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offsets of a response to it."""
    response = Response(data, 4)
    found: dict[TopicPartition, int] = {}
    for _ in range(response.take(">i")[0]):
        topic = response.text()
        for number, _, _, offset in response.array(">ihqq"):
            found[TopicPartition(topic, number)] = offset
    return found


class Response:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def array(self, form: str) -> list[tuple[int, ...]]:
        (count,) = self.take(">i")
        size = struct.calcsize(form)
        found = list(struct.iter_unpack(form, self._data[self._at : self._at + count * size]))
        self._at += count * size
        return found

    def text(self) -> str:
        (size,) = self.take(">h")
        return self._text(size)

    def compact(self) -> str:
        return self._text(self.uvarint() - 1)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _text(self, size: int) -> str:
        if size <= 0:
            return ""
        self._at += size
        return self._data[self._at - size : self._at].decode()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _compact(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def text_of(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
