"""
Who ends a child process when its parent is killed?

This program does. It is started between the two (``python supervisor.py PARENT_PID LOG PROGRAM ...``), in
a session of its own so that Ctrl-C reaches the parent only, starts the program, prints its pid, and then
watches both: the program's end is its own end; the end of the pipe on standard input, or a new parent,
means that the parent is gone. It imports little, so that it costs some 20 ms.

The parent may also let the program go: after an :data:`LET_GO` in the pipe it runs on alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

LET_GO = b"L"
"""What the parent writes to leave the program running when it ends itself."""

GRACE = 15.0
"""Seconds a program has to stop in order before it is killed."""

_TICK = 0.2


def main(arguments: list[str]) -> int:
    """
    Start a program and outlive neither it nor the parent.

    :param arguments: the parent's pid, a file for the program's output, the program and its own arguments.
    :return: exit status of the program, negative for a signal as in :mod:`subprocess`.
    """
    parent, log, *command = arguments
    with open(log, "ab") as output:  # noqa: PTH123  # pathlib would double the start-up time
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    print(program.pid, flush=True)
    # A request to the whole session must not end the one who watches before the one who is watched.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while program.poll() is None:
        readable, _, _ = select.select([0], [], [], _TICK)
        word = os.read(0, 1) if readable else None
        if word == LET_GO:
            # Without waiting for it: the program belongs to init from now on.
            os._exit(0)
        # A fork of the parent may keep the pipe open, so the parent itself is looked at too.
        if word == b"" or os.getppid() != int(parent):
            _end(program)
    return program.returncode


def _end(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        program.send_signal(signal.SIGTERM)
        # A frozen process gets no signal but this one and SIGKILL.
        program.send_signal(signal.SIGCONT)
    try:
        program.wait(GRACE)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


if __name__ == "__main__":
    # Signals as 128 + n, as a shell would say it.
    status = main(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
