"""A proxy before each broker, which strikes the connections of one lane at chosen requests."""

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_kafka_offsets.local.broker_config import LOOPBACK

_LARGEST = 1 << 26


@dataclass
class Strike:
    """
    What happens to the next request of a lane.

    With TLS nobody can read the requests: there it is the next record, and each request of librdkafka is one.

    :param kind: ``cut``, ``cut-midway``, ``cut-response``, ``delay``, ``silence`` or ``away``.
    :param skip: requests that still pass.
    :param seconds: of a delay, a silence, or for which each request of the lane is cut.
    :param login: strike only this one of a connection's first requests, from 1, and not those after the
        login; 0: any.
    """

    kind: str
    skip: int
    seconds: float
    login: int = 0
    done: bool = False
    until: float = field(default=0.0)


class Proxies:
    """
    Listens on a port for each broker and lane, in a thread of its own.

    :param tls: whether what passes is TLS.
    """

    def __init__(self, brokers: int, lanes: int, *, tls: bool) -> None:
        self.upstream: Callable[[int, int], int] = lambda lane, number: 0
        """Gives the port of a broker's own listener for a lane."""
        self._tls = tls
        self._strikes: dict[int, Strike] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self.ports = {
            (lane, number): asyncio.run_coroutine_threadsafe(self._listen(lane, number), self._loop).result(
                10
            )
            for lane in range(lanes)
            for number in range(1, brokers + 1)
        }

    def strike(self, lane: int, strike: Strike) -> None:
        """Strike the connections of a lane from now on."""
        self._strikes[lane] = strike

    def heal(self, lane: int) -> bool:
        """Strike a lane no more; return whether it was struck."""
        strike = self._strikes.pop(lane, None)
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

    async def _listen(self, lane: int, number: int) -> int:
        server = await asyncio.start_server(lambda *near: self._serve(lane, number, *near), LOOPBACK, 0)
        port: int = server.sockets[0].getsockname()[1]
        self._loop.create_task(server.serve_forever())
        return port

    async def _serve(
        self, lane: int, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far: asyncio.StreamWriter | None = None
        swallow: set[int] = set()
        tasks: list[asyncio.Task[None]] = []
        try:
            answers, far = await asyncio.open_connection(LOOPBACK, self.upstream(lane, number))
            tasks = [
                asyncio.create_task(self._requests(lane, reader, far, swallow)),
                asyncio.create_task(self._responses(answers, writer, swallow)),
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
        self, lane: int, reader: asyncio.StreamReader, far: asyncio.StreamWriter, swallow: set[int]
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame, correlation = await self._frame(reader, 8)
                passed += 1
                strike = self._due(lane, passed)
                if strike is not None:
                    if strike.kind == "cut-midway":
                        far.write(frame[: len(frame) // 2])
                        await far.drain()
                    if strike.kind.startswith("cut") and strike.kind != "cut-response":
                        return
                    if strike.kind == "away":
                        return
                    if strike.kind == "cut-response":
                        swallow.add(correlation)
                    else:
                        # Nothing of this connection is passed on meanwhile; after a silence it is cut.
                        await asyncio.sleep(strike.seconds)
                        if strike.kind == "silence":
                            return
                far.write(frame)
                await far.drain()

    async def _responses(
        self, answers: asyncio.StreamReader, near: asyncio.StreamWriter, swallow: set[int]
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame, correlation = await self._frame(answers, 4)
                if correlation in swallow:
                    return
                near.write(frame)
                await near.drain()

    async def _frame(self, reader: asyncio.StreamReader, correlated: int) -> tuple[bytes, int]:
        """
        Return the next request or response as it is, with the number that makes them a pair.

        :param correlated: where that number is. A record of TLS has none: the next one is the answer.
        """
        if self._tls:
            head = await reader.readexactly(5)
            return head + await reader.readexactly(int.from_bytes(head[3:])), 0
        head = await reader.readexactly(4)
        size = int.from_bytes(head)
        if size > _LARGEST:
            raise OSError("no frame of Kafka's protocol")
        frame = head + await reader.readexactly(size)
        return frame, struct.unpack_from(">i", frame, correlated)[0]

    def _due(self, lane: int, passed: int) -> Strike | None:
        strike = self._strikes.get(lane)
        if strike is None:
            return None
        if strike.done:
            return strike if strike.kind == "away" and time.monotonic() < strike.until else None
        if strike.login not in (0, passed):
            return None
        strike.skip -= 1
        if strike.skip >= 0:
            return None
        strike.done, strike.until = True, time.monotonic() + strike.seconds
        return strike
