"""Admin workers as copies of a process that has imported the client: a test run needs over a thousand."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.kafka import worker

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 1 << 17
"""Bytes of an environment."""


def forked_workers() -> Iterator[None]:
    """Let :mod:`airflow_kafka_offsets.kafka.worker` start its workers by a fork until the end of the run."""
    server = ForkServer()
    python, search = sys.executable, os.environ.get("PYTHONPATH")

    def start(arguments: list[str], **how: Any) -> Any:
        # Some tests want another Python, or modules of their own.
        other = sys.executable != python or os.environ.get("PYTHONPATH") != search
        if other or worker.MODULE not in arguments[-1]:
            return subprocess.Popen(arguments, **how)
        return Forked(server, how["env"], [how["stdin"], how["stdout"], how["stderr"].fileno()])

    vars(worker)["subprocess"] = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
    try:
        yield
    finally:
        vars(worker)["subprocess"] = subprocess
        server.end()


class ForkServer:
    """The process that is copied; it starts with the first copy, and ends with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def fork(self, environment: dict[str, str], files: list[int]) -> None:
        """Start a copy with this environment: its standard files, and the one where its end is told."""
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": environment["PYTHONPATH"]},
                )
        text = json.dumps(environment).encode()
        assert len(text) < LARGEST, f"an environment of {len(text)} bytes"
        socket.send_fds(self._requests, [text], files)

    def end(self) -> None:
        """End the server; its copies end when they notice that."""
        if self._requests and self._process:
            self._requests.close()
            self._process.wait(10)


class Forked:
    """What the package uses of :class:`subprocess.Popen`."""

    def __init__(self, server: ForkServer, environment: dict[str, str], standard: list[int]) -> None:
        self._status, told = os.pipe()
        try:
            server.fork(environment, [*standard, told])
        finally:
            os.close(told)
        self.returncode: int | None = None
        self.pid = self._told()

    def _told(self) -> int:
        number = os.read(self._status, 8)
        assert len(number) == 8, "the process that is copied has ended"
        return int.from_bytes(number, "little", signed=True)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative after a signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("admin worker", timeout or 0)
            self.returncode = self._told()
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        """Kill the copy, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def serve(requests: socket.socket) -> None:
    """Fork for each request; tell its sender the copy's process id, and at its end the exit status."""
    from airflow_kafka_offsets.kafka.admin_worker import main

    copies: dict[int, int] = {}
    wake, ended = os.pipe()
    for file in (wake, ended):
        os.set_blocking(file, False)
    signal.set_wakeup_fd(ended)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 1024)
            tell_ends(copies)
        if requests.fileno() in ready:
            text, files, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not text:
                return
            *standard, told = files
            if pid := os.fork():
                tell(told, pid)
                copies[pid] = told
                for file in standard:
                    os.close(file)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for file in (wake, ended, told, *copies.values()):
                os.close(file)
            requests.close()
            for number, file in enumerate(standard):
                os.dup2(file, number)
                os.close(file)
            os.environ.clear()
            os.environ.update(json.loads(text))
            main()


def tell(file: int, number: int) -> None:
    """Write a number to a process that may no longer read it."""
    with suppress(BrokenPipeError):
        os.write(file, number.to_bytes(8, "little", signed=True))


def tell_ends(copies: dict[int, int]) -> None:
    """Tell of each copy that has ended."""
    while copies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = copies.pop(pid)
        tell(file, os.waitstatus_to_exitcode(status))
        os.close(file)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
