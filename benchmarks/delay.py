"""
Delays what a broker answers: ``python delay.py PORT BROKERS_PORT MILLISECONDS`` listens on a port of its own.

It runs in a process of its own, so that it takes no time of those who are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

LOOPBACK = "127.0.0.1"


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            writer.write(data)
    writer.close()


async def _responses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        # Each part is delayed from when it came: what follows it does not wait twice.
        while data := await reader.read(1 << 20):
            loop.call_later(seconds, writer.write, data)
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

    server = await asyncio.start_server(connect, LOOPBACK, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
