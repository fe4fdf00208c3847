"""
A simulated Kafka cluster: ``python stub_cluster.py BROKERS TOPICS PARTITIONS`` prints its address and serves.

It supports the requests for a lag (ApiVersions, Metadata, FindCoordinator, OffsetFetch, ListOffsets), in the
versions before tagged fields. Its responses are fixed: each group has committed 1 in each partition, and each
log has the records 0 to 2. It does not simulate storage, replication, security, quotas, members and broker
failures. All brokers share one process and one core.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import zlib
from collections.abc import Callable

from raw import Response, text_of

LOOPBACK = "127.0.0.1"
COMMITTED, LOG_START, LOG_END = 1, 0, 3
_LIST_OFFSETS, _METADATA, _OFFSET_FETCH, _FIND_COORDINATOR, _API_VERSIONS = 2, 3, 9, 10, 18
# Includes versions that librdkafka expects before it uses an API; no client requests these here.
_VERSIONS = {
    0: (0, 7),
    1: (0, 11),
    _LIST_OFFSETS: (1, 2),
    _METADATA: (0, 4),
    8: (1, 7),
    _OFFSET_FETCH: (1, 5),
    _FIND_COORDINATOR: (0, 2),
    _API_VERSIONS: (0, 0),
}
_UNSUPPORTED_VERSION = 35


class Cluster:
    def __init__(self, topics: int, partitions: int) -> None:
        self.ports: list[int] = []
        self._topics = {f"topic-{number:04}": partitions for number in range(topics)}

    def respond(self, key: int, version: int, request: Response) -> bytes:
        answers: dict[int, Callable[[int, Response], bytes]] = {
            _API_VERSIONS: self._api_versions,
            _METADATA: self._metadata,
            _FIND_COORDINATOR: self._coordinator,
            _OFFSET_FETCH: self._offset_fetch,
            _LIST_OFFSETS: self._list_offsets,
        }
        return answers[key](version, request)

    def coordinator(self, group_id: str) -> int:
        return zlib.crc32(group_id.encode()) % len(self.ports)

    def _api_versions(self, version: int, _: Response) -> bytes:
        error = _UNSUPPORTED_VERSION if version else 0
        body = struct.pack(">hi", error, len(_VERSIONS))
        return body + b"".join(struct.pack(">hhh", key, *each) for key, each in _VERSIONS.items())

    def _metadata(self, version: int, request: Response) -> bytes:
        (count,) = request.take(">i")
        wanted = list(self._topics) if count < 0 else [request.text() for _ in range(count)]
        body = bytearray(b"\0\0\0\0" if version >= 3 else b"")
        body += struct.pack(">i", len(self.ports))
        for node, port in enumerate(self.ports):
            body += struct.pack(">i", node) + text_of(LOOPBACK) + struct.pack(">ih", port, -1)
        body += text_of("simulated") + struct.pack(">i", 0)
        body += struct.pack(">i", len(wanted))
        for topic in wanted:
            count = self._topics.get(topic, 0)
            body += struct.pack(">h", 0 if count else 3) + text_of(topic) + struct.pack(">bi", 0, count)
            for number in range(count):
                leader = number % len(self.ports)
                body += struct.pack(">hiiiiii", 0, number, leader, 1, leader, 1, leader)
        return bytes(body)

    def _coordinator(self, version: int, request: Response) -> bytes:
        node = self.coordinator(request.text())
        head = struct.pack(">ihh", 0, 0, -1) if version else struct.pack(">h", 0)
        return head + struct.pack(">i", node) + text_of(LOOPBACK) + struct.pack(">i", self.ports[node])

    def _offset_fetch(self, version: int, request: Response) -> bytes:
        request.text()
        (topics,) = request.take(">i")
        wanted = {request.text(): [number for (number,) in request.array(">i")] for _ in range(topics)}
        body = bytearray(b"\0\0\0\0" if version >= 3 else b"")
        body += struct.pack(">i", len(wanted))
        epoch = struct.pack(">i", -1) if version >= 5 else b""
        for topic, numbers in wanted.items():
            body += text_of(topic) + struct.pack(">i", len(numbers))
            for number in numbers:
                body += struct.pack(">iq", number, COMMITTED) + epoch + b"\0\0\0\0"
        return bytes(body) + (b"\0\0" if version >= 2 else b"")

    def _list_offsets(self, version: int, request: Response) -> bytes:
        request.take(">ib" if version >= 2 else ">i")
        body = bytearray(b"\0\0\0\0" if version >= 2 else b"")
        (topics,) = request.take(">i")
        body += struct.pack(">i", topics)
        for _ in range(topics):
            topic, partitions = request.text(), request.array(">iq")
            body += text_of(topic) + struct.pack(">i", len(partitions))
            for number, timestamp in partitions:
                offset = LOG_END if timestamp == -1 else LOG_START
                body += struct.pack(">ihqq", number, 0, -1, offset)
        return bytes(body)


async def _serve(brokers: int, topics: int, partitions: int) -> None:
    cluster = Cluster(topics, partitions)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = await reader.readexactly(size)
                key, version, number, client = struct.unpack_from(">hhih", data)
                body = cluster.respond(key, version, Response(data, 10 + max(0, client)))
                writer.write(struct.pack(">ii", len(body) + 4, number) + body)
                await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(connection, LOOPBACK, 0, backlog=1000) for _ in range(brokers)]
    cluster.ports += [server.sockets[0].getsockname()[1] for server in servers]
    print(f"{LOOPBACK}:{cluster.ports[0]}", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:4])))
