"""Starts, finds and ends processes that must not be left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local import supervisor

try:
    import psutil
except ImportError as error:
    raise SetupError("psutil is not installed: pip install 'airflow-kafka-offsets[demo]'") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class SupervisedProcess:
    """
    A process that ends with this one, even when this one is killed, and that Ctrl-C does not reach.

    :param log: a file to which the program's output is appended.
    :raises SetupError: if the program cannot be started.
    """

    def __init__(self, command: Sequence[str], log: Path, directory: Path) -> None:
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                # Isolated and without site-packages it starts sooner.
                [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(log), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=directory,
            )
        first_line = b""
        try:
            first_line = self._supervisor.stdout.readline() if self._supervisor.stdout else b""
        finally:
            # Also after Ctrl-C.
            if not first_line:
                self._close(b"")
        if not first_line:
            raise SetupError(f"{command[0]} could not be started: see the end of {log}")
        self.pid = int(first_line)

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n for a signal; ``None`` while the program runs."""
        return self._supervisor.poll()

    def wait(self) -> int:
        """Return the exit status of a program that is ending."""
        return self._supervisor.wait(supervisor.GRACE + 10)

    def end(self) -> None:
        """End the program, by SIGKILL if it takes longer than :data:`supervisor.GRACE`."""
        self._close(b"")
        if self._supervisor.returncode < 0:
            # The supervisor itself was killed, so nobody has ended the program.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the program by SIGKILL."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        self.end()

    def leave_running(self) -> None:
        """Let the program outlive this process."""
        self._close(supervisor.LET_GO)

    def _close(self, last_word: bytes) -> None:
        try:
            self._supervisor.communicate(last_word, timeout=supervisor.GRACE + 10)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.communicate()


def is_running(pid: int, mark: str) -> bool:
    """Return whether ``pid`` is a live process that has the argument ``mark``: pids are reused."""
    try:
        return mark in psutil.Process(pid).cmdline()
    except psutil.Error:  # also a zombie
        return False


def end_by_pid(pid: int, mark: str) -> bool:
    """End a process that is not a child of this one: SIGTERM, then SIGKILL. Return whether there was one."""
    found = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + supervisor.GRACE
        if not is_running(pid, mark):
            break
        found = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            # A stopped process receives SIGTERM only when it continues.
            os.kill(pid, signal.SIGCONT)
        # psutil's wait() would also wait for a zombie that its parent never reaps.
        while is_running(pid, mark) and time.monotonic() < deadline:
            time.sleep(0.05)
    return found
