"""A child process that answers several requests at once, each within its deadline."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from airflow_kafka_offsets.kafka.worker import GRACE, start_child

_START = 60.0
"""Seconds that the process may take to start."""

# Bytes that are read at once.
_PART = 1 << 20
_TICK = 0.5
"""
Seconds between two checks for overdue requests. Also the time in which the process must take a request: if it
takes longer, it counts as hanging, and must not block the API server's threads.
"""

# Half of the threads of the process (_AT_ONCE in live_worker.py). The other threads still answer until the
# process is replaced.
_MOST_HUNG = 4
_ENDED = "the process that reads from Kafka has ended; it is started again"


class _Request(NamedTuple):
    end: float
    answer: Future[dict[str, Any]]
    sent_at: float


class WorkerProcess:
    """
    The child process and its open requests.

    The process reads one request from each line of its input, ``{"id", "end", ...}``, and writes answers
    in any order, ``{"id", ...}``. Its first line is ``{"ready": true}``. If the process answers no request at
    all, or has left several requests unanswered, it gets no more requests. It is killed after the other
    requests are answered or overdue.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process, self._socket = start_child(module, environment)
        self._socket.settimeout(_TICK)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._open: dict[int, _Request] = {}
        self._number = 0
        self._started = time.monotonic()
        self._ready = False
        self._answered = 0.0
        self._hung: set[int] = set()
        self._retired = False
        self._ended = False
        self._finalizer = weakref.finalize(self, _kill, self._process, self._owner)
        self._thread = threading.Thread(target=self._listen, name="kafka-offsets-live", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether the process accepts requests: not after its end, and not in a fork of this process."""
        return not self._retired and self._owner == os.getpid() and self._process.poll() is None

    def ask(self, question: Mapping[str, Any], seconds: float) -> Future[dict[str, Any]]:
        """Return the future answer; without one at the deadline, it is ``{"error": the reason}``."""
        answer: Future[dict[str, Any]] = Future()
        answer.set_running_or_notify_cancel()  # who no longer waits for it must not cancel it
        with self._lock:
            if self._ended:
                answer.set_result({"error": _ENDED})
                return answer
            self._number += 1
            number = self._number
            now = time.monotonic()
            self._open[number] = _Request(now + seconds, answer, now)
            line = json.dumps({"id": number, "end": now + seconds, **question}).encode() + b"\n"
            try:
                self._socket.sendall(line)
            except OSError:  # the process has ended or hangs
                self._retired = True
        return answer

    def end(self) -> None:
        """End the process; the answers to its open requests are errors."""
        self._retired = True
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE)

    def _listen(self) -> None:
        received = b""
        # The connection is reset if the process ends before it has read all requests.
        with suppress(ConnectionError):
            while not (self._retired and not self._open):
                with suppress(TimeoutError):
                    if not (more := self._socket.recv(_PART)):
                        break
                    *lines, received = (received + more).split(b"\n")
                    for line in lines:
                        self._take(line)
                self._expire()
        self.end()
        with self._lock:
            self._ended = True
            self._socket.close()
        for answer in self._pop_requests(list(self._open)):
            answer.set_result({"error": _ENDED})

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            number = found.get("id")
        except (ValueError, AttributeError):
            return
        self._ready = True
        self._answered = time.monotonic()
        self._hung.discard(number)
        for answer in self._pop_requests([number]):
            answer.set_result(found)

    def _expire(self) -> None:
        now = time.monotonic()
        due = [number for number, request in list(self._open.items()) if request.end < now]
        if due and self._ready:
            self._hung.update(due)
            # A hanging storage only affects its own pipelines, until it keeps too many threads busy.
            silent = self._answered < min(self._open[number].sent_at for number in due)
            self._retired |= silent or len(self._hung) >= _MOST_HUNG
        elif due and now - self._started > _START:
            self._retired = True
        reason = "no answer in time" if self._ready else "the process that reads from Kafka is still starting"
        for answer in self._pop_requests(due):
            answer.set_result({"error": reason})

    def _pop_requests(self, numbers: Sequence[int]) -> list[Future[dict[str, Any]]]:
        with self._lock:
            return [self._open.pop(number).answer for number in numbers if number in self._open]


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
