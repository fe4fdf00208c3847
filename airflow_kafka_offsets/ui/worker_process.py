"""A child process that answers several requests at once, each within its deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, cast

import airflow_kafka_offsets

_START = 60.0
"""Seconds that the process may take to start."""

# Bytes that are read at once: more than a pipe's buffer.
_CHUNK = 1 << 20
# Seconds between two checks for overdue requests; four times as often while a request is open.
_TICK = 0.5
# Seconds that end() waits for the thread, and for the end of a killed process.
_GRACE = 1.0
_FULL = 0.5
"""Seconds for which the pipe to the process may stay full. After them the process counts as hanging."""

# Half of the threads of the process (_AT_ONCE in live_worker.py). The other threads still answer until the
# process is replaced.
_MOST_HUNG = 4
_ENDED = "the process that reads from Kafka has ended; it is started again"


class NoAnswerError(Exception):
    """A request has no answer; the text gives the reason."""


class WorkerProcess:
    """
    The child process and its open requests.

    The process reads one request from each line of its input, ``{"id", "seconds", ...}``, and writes answers
    in any order, ``{"id", ...}``. Its first line is ``{"ready": true}``. If the process answers no request at
    all, or has left several requests unanswered, it gets no more requests. It is killed after the other
    requests are answered or overdue.

    :param command: arguments of the process, which must not contain secrets.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        root = str(Path(airflow_kafka_offsets.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            list(command),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        )
        self._owner = os.getpid()
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        # Otherwise a hanging process would block the API server's thread after the pipe is full.
        os.set_blocking(self._stdin.fileno(), False)
        self._lock = threading.Lock()
        self._open: dict[int, tuple[float, Future[Any], float]] = {}
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

    def ask(self, question: Mapping[str, Any], seconds: float) -> Future[Any]:
        """Return the future answer, a mapping; it fails with :class:`NoAnswerError` at the deadline."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended:
                answer.set_exception(NoAnswerError(_ENDED))
                return answer
            self._number += 1
            number = self._number
            now = time.monotonic()
            self._open[number] = (now + seconds, answer, now)
            line = json.dumps({"id": number, "end": now + seconds, **question}).encode() + b"\n"
            try:
                self._retired |= not self._write(line)
            except (OSError, ValueError):  # the process has ended, which the thread detects
                self._retired = True
        return answer

    def _write(self, line: bytes) -> bool:
        """Write a line, which may exceed the pipe's buffer; return whether the whole line was written."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while line and selector.select(_FULL):
                line = line[self._stdin.write(line) or 0 :]
        return not line

    def end(self) -> None:
        """End the process; its open requests fail."""
        self._retired = True
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE)

    def _listen(self) -> None:
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while not (self._retired and not self._open):
                if selector.select(_TICK / 4 if self._open else _TICK):
                    more = os.read(self._stdout.fileno(), _CHUNK)
                    if not more:
                        break
                    *lines, received = (received + more).split(b"\n")
                    for line in lines:
                        self._take(line)
                self._expire()
        self.end()
        with self._lock:
            self._ended = True
            self._stdin.close()
            self._stdout.close()
        for answer in self._pop_requests(list(self._open)):
            answer.set_exception(NoAnswerError(_ENDED))

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
        due = [number for number, (end, *_) in list(self._open.items()) if end < now]
        if due and self._ready:
            self._hung.update(due)
            # A hanging storage only affects its own pipelines, until it keeps too many threads busy.
            silent = self._answered < min(self._open[number][2] for number in due)
            self._retired |= silent or len(self._hung) >= _MOST_HUNG
        elif due and now - self._started > _START:
            self._retired = True
        reason = "no answer in time" if self._ready else "the process that reads from Kafka is still starting"
        for answer in self._pop_requests(due):
            answer.set_exception(NoAnswerError(reason))

    def _pop_requests(self, numbers: Sequence[int]) -> list[Future[Any]]:
        with self._lock:
            return [self._open.pop(number)[1] for number in numbers if number in self._open]


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    try:
        process.wait(0)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
