"""A proxy before each broker, which strikes the connections of one client at chosen requests."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_kafka_offsets.local.broker_config import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1 << 26


@dataclass
class Strike:
    """
    What happens to the next request of a client.

    :param kind: ``cut``, ``cut-response``, ``delay``, ``silence`` or ``away``.
    :param skip: requests that still pass.
    :param seconds: of a delay, a silence, or for which each request of the client is cut.
    """

    kind: str
    skip: int
    seconds: float
    done: bool = False
    until: float = field(default=0.0)


class Proxies:
    """
    Listens on one port for each broker, in a thread of its own.

    A client is known by the start of its ``client.id``, which each request carries.
    """

    def __init__(self, brokers: int) -> None:
        self.ports: dict[int, int] = {}
        self.upstream: Callable[[int], int] = lambda number: 0
        """Gives the port of a broker's own listener."""
        self._strikes: dict[str, Strike] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        for number in range(1, brokers + 1):
            self.ports[number] = asyncio.run_coroutine_threadsafe(self._listen(number), self._loop).result(10)

    def strike(self, client_id: str, strike: Strike) -> None:
        """Strike the connections of a client from now on."""
        self._strikes[client_id] = strike

    def heal(self, client_id: str) -> bool:
        """Strike a client no more; return whether it was struck."""
        strike = self._strikes.pop(client_id, None)
        return strike is not None and strike.done

    def close(self) -> None:
        """End all connections and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, number: int) -> int:
        server = await asyncio.start_server(lambda *near: self._serve(number, *near), LOOPBACK, 0)
        port: int = server.sockets[0].getsockname()[1]
        self._loop.create_task(server.serve_forever())
        return port

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        swallow: set[int] = set()
        tasks: list[asyncio.Task[None]] = []
        try:
            answers, far = await asyncio.open_connection(LOOPBACK, self.upstream(number))
            tasks = [
                asyncio.create_task(self._requests(reader, far, swallow)),
                asyncio.create_task(_responses(answers, writer, swallow)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the broker is away
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (writer, far):
                if each is not None:
                    each.close()
                    with contextlib.suppress(OSError):
                        await each.wait_closed()

    async def _requests(
        self, reader: asyncio.StreamReader, far: asyncio.StreamWriter, swallow: set[int]
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                correlation, length = struct.unpack_from(">ih", frame, 4)
                name = frame[10 : 10 + max(length, 0)].decode()
                strike = self._due(name)
                if strike is not None:
                    if strike.kind in ("cut", "away"):
                        return
                    if strike.kind == "cut-response":
                        swallow.add(correlation)
                    else:
                        # Nothing of this connection is passed on meanwhile; after a silence it is cut.
                        await asyncio.sleep(strike.seconds)
                        if strike.kind == "silence":
                            return
                far.write(struct.pack(">i", len(frame)) + frame)
                await far.drain()

    def _due(self, client_id: str) -> Strike | None:
        name = next((each for each in self._strikes if client_id.startswith(each)), None)
        strike = self._strikes.get(name or "")
        if strike is None:
            return None
        if strike.done:
            return strike if strike.kind == "away" and time.monotonic() < strike.until else None
        strike.skip -= 1
        if strike.skip >= 0:
            return None
        strike.done, strike.until = True, time.monotonic() + strike.seconds
        return strike


async def _responses(answers: asyncio.StreamReader, near: asyncio.StreamWriter, swallow: set[int]) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            frame = await _frame(answers)
            if struct.unpack_from(">i", frame)[0] in swallow:
                return
            near.write(struct.pack(">i", len(frame)) + frame)
            await near.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= _LARGEST:
        raise OSError("no frame of Kafka's protocol")
    return await reader.readexactly(size)
