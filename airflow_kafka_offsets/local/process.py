"""Starts, finds and ends processes that must not outlive this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local import supervisor

try:
    import psutil
except ImportError as error:
    raise SetupError("psutil is not installed: pip install 'airflow-kafka-offsets[demo]'") from error

_GRACE_AFTER_HALF = 3.0


class SupervisedProcess:
    """
    A process that ends with this one, even if this one is killed; Ctrl-C does not reach it.

    The processes in its group end with it.

    :param log: file to which the program's output is appended.
    :raises SetupError: if the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                # Isolated and without site-packages Python starts faster.
                [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=directory,
                env=environment,
            )
        try:
            first_line = self._supervisor.stdout.readline() if self._supervisor.stdout else b""
            if not first_line:
                raise SetupError(f"{command[0]} could not be started: {log_tail(log, 1) or 'no output'}")
            self.pid = int(first_line)
        except BaseException:  # also after Ctrl-C
            self._close()
            raise

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n for a signal; ``None`` while the program runs."""
        return self._supervisor.poll()

    def end(self) -> None:
        """End the program, with SIGKILL if it takes longer than :data:`supervisor.GRACE`."""
        self._close()
        if self._supervisor.returncode < 0:
            # The supervisor itself was killed, so the program still runs.
            with contextlib.suppress(psutil.NoSuchProcess):
                program = psutil.Process(self.pid)
                program.kill()
                _wait([program], supervisor.GRACE)

    def end_all(self) -> None:
        """End the program and all its descendants, including those in other process groups."""
        started: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.pid).children(recursive=True)
        self.end()
        # psutil identifies each process by more than its pid, which may be reused.
        for process in psutil.wait_procs(started, timeout=1)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def leave_running(self) -> None:
        """Let the program outlive this process."""
        self._close(supervisor.LET_GO)

    def _close(self, last_word: bytes = b"") -> None:
        try:
            self._supervisor.communicate(last_word, timeout=supervisor.GRACE + 10)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.communicate()


def log_tail(log: Path, lines: int) -> str:
    """Return the last lines of a program's output."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def find_processes(*wanted: str) -> list[psutil.Process]:
    """Return live processes (not zombies) with these arguments, without their supervisors."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if set(wanted) <= set(arguments := process.info["cmdline"] or ())
        and supervisor.__file__ not in arguments
    ]


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """
    End processes that are not children of this one, all at once: SIGTERM, then SIGKILL.

    After half of them have ended, the others get :data:`_GRACE_AFTER_HALF` more seconds: brokers without a
    majority wait for a controller that no longer runs.
    """
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            # A stopped process receives SIGTERM only when it continues.
            process.resume()
    for process in _wait(processes, supervisor.GRACE):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(processes, supervisor.GRACE)


def _wait(processes: Sequence[psutil.Process], seconds: float) -> Sequence[psutil.Process]:
    """Wait for processes to end; return those that have not ended."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if _lives(process)]) and time.monotonic() < deadline:
        if 2 * len(left) <= len(processes):
            deadline = min(deadline, time.monotonic() + _GRACE_AFTER_HALF)
        time.sleep(0.05)
    return left


def _lives(process: psutil.Process) -> bool:
    # psutil's wait() would also wait for a zombie that its parent never reaps.
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.cmdline())
    return False
