"""
A program between a parent and a child process: it ends the child when the parent ends, even if killed.

``python supervisor.py PARENT_PID PROGRAM ...`` starts the program in its own process group, so that Ctrl-C
reaches only the parent, and prints the program's pid. The program writes to standard error. If standard input
ends or the parent changes, the parent has ended: then the supervisor ends the group. After :data:`LET_GO` on
standard input, the program continues without a supervisor.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

LET_GO = b"L"
GRACE = 15.0
"""Seconds that a program has to stop before it is killed."""

# Seconds between two checks of the parent: a fork of the parent may keep the pipe open.
_TICK = 0.2


def main(arguments: list[str]) -> int:
    """Start the program of the command line and return its exit status, negative for a signal."""
    parent, *command = arguments
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=os.setpgrp)
    print(program.pid, flush=True)
    # A signal to the whole session must not end the supervisor before the program.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while program.poll() is None:
        readable, _, _ = select.select([0], [], [], _TICK)
        word = os.read(0, 1) if readable else None
        if word == LET_GO:
            os._exit(0)
        if word == b"" or os.getppid() != int(parent):
            _end(program)
    return program.returncode


def _end(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        program.send_signal(signal.SIGTERM)
        # A stopped process receives SIGTERM only when it continues.
        program.send_signal(signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(GRACE)
    # Also end processes that the program started and left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


if __name__ == "__main__":
    # Report a signal as 128 + n, as shells do.
    status = main(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
