"""A child process that answers several requests at once, each within its deadline."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from airflow_kafka_offsets.kafka.worker import GRACE, start_child

_START = 60.0
"""Seconds that the process may take to start."""

# Bytes of an answer: there is no limit, because the process is our own.
_LONGEST = 1 << 30

# Half of the threads of a connection (_AT_ONCE in live_worker.py). The other threads still answer until the
# process is replaced.
_MOST_HUNG = 4
_ENDED = "the process that reads from Kafka has ended; it is started again"
_NOT_STARTED = (
    "the process that reads from Kafka ends at its start, see the log of the API server; it is started again "
    "within a minute"
)


class WorkerProcess:
    """
    The child process and its open requests, in one event loop.

    The process reads one request from each line of its input, ``{"id", "end", ...}``, and writes answers
    in any order, ``{"id", ...}``. Its first line is ``{"ready": true}``. If the process answers no request at
    all, or has left several requests unanswered, it gets no more requests. It is killed after the other
    requests are answered or overdue.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process, self._socket = start_child(module, environment)
        self._owner = os.getpid()
        self._numbers = count()
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._started = time.monotonic()
        self._answered: float | None = None
        """When the process last answered; ``None`` until it is ready."""
        self._hung: set[int] = set()
        self._retired = False
        self._finalizer = weakref.finalize(self, _kill, self._process, self._owner)
        self._connected = asyncio.ensure_future(self._connect())

    @property
    def is_usable(self) -> bool:
        """Whether the process accepts requests: not after its end, and not in a fork of this process."""
        return not self._retired and self._owner == os.getpid() and self._process.poll() is None

    @property
    def failed_lately(self) -> bool:
        """Whether the process has just ended at its start: another one would probably do the same."""
        is_recent = time.monotonic() - self._started < _START
        return self._answered is None and is_recent and self._owner == os.getpid()

    async def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer; without one within the time, it is ``{"error": the reason}``."""
        if not self.is_usable:
            return self._ended()
        number, asked_at = next(self._numbers), time.monotonic()
        # The process gives up earlier: its own error says more, and a slow broker is not a hanging process.
        end = asked_at + seconds - GRACE
        line = json.dumps({"id": number, "end": end, **question}).encode() + b"\n"
        answer: asyncio.Future[dict[str, Any]] = asyncio.Future()
        self._open[number] = answer
        try:
            # Does not wait until the process has read it, because the process may hang.
            (await asyncio.shield(self._connected)).write(line)
            # Not asyncio.timeout(): it would drop an answer that came while the event loop was busy.
            await asyncio.wait([answer], timeout=seconds)
            return answer.result() if answer.done() else {"error": self._overdue(number, asked_at)}
        finally:
            del self._open[number]
            if self._retired and not self._open:
                # Does not wait for its end: a system call of a storage may take a while.
                self._process.kill()

    def end(self) -> None:
        """End the process; the answers to its open requests are errors."""
        self._retired = True
        self._finalizer()

    def _ended(self) -> dict[str, Any]:
        return {"error": _NOT_STARTED if self._answered is None else _ENDED}

    def _overdue(self, number: int, asked_at: float) -> str:
        """Note a request without an answer, and return the reason."""
        if self._answered is None:
            self._retired |= time.monotonic() - self._started > _START
            return "the process that reads from Kafka is still starting"
        self._hung.add(number)
        # A hanging storage only affects its own pipelines, until it keeps too many threads busy.
        self._retired |= self._answered < asked_at or len(self._hung) >= _MOST_HUNG
        return "no answer in time"

    async def _connect(self) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(sock=self._socket, limit=_LONGEST)
        self._listening = asyncio.ensure_future(self._listen(reader, writer))
        return writer

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # The connection is reset if the process ends before it has read all requests.
            with suppress(ConnectionError):
                async for line in reader:
                    self._take(line)
        finally:
            writer.transport.abort()
            self.end()
            for answer in self._open.values():
                if not answer.done():
                    answer.set_result(self._ended())

    def _take(self, line: bytes) -> None:
        try:
            # Not in a thread: Python's json lets no other thread run meanwhile.
            found = json.loads(line)
            number = found.get("id")
        except (ValueError, AttributeError):
            return
        self._answered = time.monotonic()
        self._hung.discard(number)
        answer = self._open.get(number)
        if answer is not None and not answer.done():  # its viewer may have gone
            answer.set_result(found)


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
