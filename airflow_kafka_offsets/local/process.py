"""How is the broker's process started, recognised and ended, whatever happens to the process that wanted it?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local import supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence


class SupervisedProcess:
    """
    A process that ends with this one, even when this one is killed, and that Ctrl-C does not reach.

    :param command: program and arguments.
    :param log: a file; what the program prints is added to it.
    :param directory: the program's working directory.
    :raises SetupError: if the program cannot be started.
    """

    def __init__(self, command: Sequence[str], log: Path, directory: Path) -> None:
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                # Isolated and without site-packages: the standard library is enough, and it starts sooner.
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
            # Also when Ctrl-C came meanwhile.
            if not first_line:
                self._close(b"")
        if not first_line:
            raise SetupError(f"{command[0]} could not be started: see the end of {log}")
        self.pid = int(first_line)
        """Pid of the program itself."""

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n for a signal; ``None`` while the program runs."""
        return self._supervisor.poll()

    def wait(self) -> int:
        """Exit status of a program that is known to be ending."""
        return self._supervisor.wait(supervisor.GRACE + 10)

    def end(self) -> None:
        """End the program in order, or by SIGKILL if that takes longer than :data:`supervisor.GRACE`."""
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
            # Closes both pipes; that one is broken already does not matter to it.
            self._supervisor.communicate(last_word, timeout=supervisor.GRACE + 10)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.communicate()


def is_running(pid: int, mark: str) -> bool:
    """
    Whether ``pid`` is a live process with the argument ``mark``: pids are used again by others.

    :param pid: the pid that was noted.
    :param mark: an argument that no other program would have.
    """
    directory = Path("/proc") / str(pid)
    if Path("/proc/self").exists():
        try:
            arguments = (directory / "cmdline").read_bytes()
        except OSError:
            return False
        # A zombie has no arguments any more.
        return mark.encode() in arguments.split(b"\0")
    listed = subprocess.run(
        ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)],  # noqa: S607  # where it is differs
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    ).stdout.strip()
    return mark in listed and not listed.startswith("Z")


def freeze(pid: int, timeout: float = 5.0) -> None:
    """
    Stop a process where it is, and return once all of it stands still: SIGSTOP reaches threads one by one.

    :param pid: the process.
    :param timeout: seconds after which it is believed to stand still anyway.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not _stands_still(pid):
        time.sleep(0.01)


def _stands_still(pid: int) -> bool:
    threads = Path("/proc") / str(pid) / "task"
    if threads.exists():
        try:
            # After the program's name, which may hold anything, comes the state.
            states = [stat.read_text().rpartition(")")[2].split()[0] for stat in threads.glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):
            # A thread that just ended; those that are left have not all stopped yet.
            return False
        return all(state in "Tt" for state in states)
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)],  # noqa: S607  # where it is differs
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    ).stdout
    return state.strip().startswith("T")


def end_by_pid(pid: int, mark: str, grace: float = supervisor.GRACE) -> bool:
    """
    End a process that is not a child of this one: SIGTERM, and SIGKILL after ``grace`` seconds.

    :param pid: the pid that was noted.
    :param mark: see :func:`is_running`.
    :param grace: seconds it may take to stop.
    :return: whether there was such a process.
    """
    if not is_running(pid, mark):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        # A frozen process gets no signal but this one and SIGKILL.
        os.kill(pid, signal.SIGCONT)
    if not _ends(pid, mark, grace):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _ends(pid, mark, grace)
    return True


def _ends(pid: int, mark: str, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while is_running(pid, mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
