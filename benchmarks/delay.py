"""
Delays a broker's responses: ``python delay.py PORT BROKERS_PORT MILLISECONDS`` listens on a separate port.

It runs in a separate process, so that it takes no processor time of the measured clients. It also counts: for
each line on its standard input it prints the requests and bytes since the last line, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections import Counter

LOOPBACK = "127.0.0.1"
_APIS = {
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    15: "DescribeGroups",
    18: "ApiVersions",
}
_PART = 1 << 20

passed: Counter[str] = Counter()
"""Requests by their API, and bytes ``to`` and ``from`` the broker."""


class _Requests:
    """Counts the requests of one connection."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._skip = 0

    def count(self, data: bytes) -> None:
        passed["to"] += len(data)
        self._pending += data
        while True:
            skipped = min(self._skip, len(self._pending))
            del self._pending[:skipped]
            self._skip -= skipped
            if self._skip or len(self._pending) < 6:
                return
            size, api = struct.unpack_from(">ih", self._pending)
            passed[_APIS.get(api, str(api))] += 1
            self._skip = size + 4


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    requests = _Requests()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PART):
            requests.count(data)
            writer.write(data)
    writer.close()


async def _responses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        # Each part is delayed from its arrival, so that the next part does not wait twice.
        while data := await reader.read(_PART):
            passed["from"] += len(data)
            if seconds:
                loop.call_later(seconds, writer.write, data)
            else:
                writer.write(data)
    loop.call_later(seconds, writer.close)


async def _serve(port: int, upstream: int, seconds: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_broker, broker = None, None
        with contextlib.suppress(ConnectionError):
            to_broker, broker = await asyncio.open_connection(LOOPBACK, upstream)
        if to_broker is None or broker is None:
            writer.close()
            return
        await asyncio.gather(_requests(reader, broker), _responses(to_broker, writer, seconds))

    def report() -> None:
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin)
            return
        print(json.dumps(passed), flush=True)
        passed.clear()

    server = await asyncio.start_server(connect, LOOPBACK, port)
    asyncio.get_running_loop().add_reader(sys.stdin, report)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
