"""Starts child processes and talks to them."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import SetupError

MODULE = "airflow_kafka_offsets.kafka.admin_worker"
GRACE = 1.0
"""Seconds that a worker may exceed its deadline, or take to end, before it is killed."""

# Like python -m, but does not import modules from the working directory (-P exists since Python 3.11).
_START = "import sys; sys.path = [at for at in sys.path if at]; from {module} import main; main()"
_PART = 1 << 20
"""Number of bytes read at once."""
_SMALL = {"MALLOC_ARENA_MAX": "2"}
"""GNU's allocator reserves memory for each thread, and the client has many threads that do little."""
_LEAST = 0.001
"""Minimum seconds of a wait: with 0, Python would not wait at all."""
_BUSY = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
"""Errors of a machine that has no room for another process or file now."""
_LEAST_TOKEN = 60.0
"""Minimum seconds that an oauth_cb token must still be valid; otherwise a new worker is started."""


class AdminWorker:
    """
    The admin worker in another Python process, which ends with this process.

    :param settings: the first line of the worker's standard input: it may contain a password, so it must not
        be an argument.
    :param token: the worker's token, if it needs one, with its expiry time in seconds.
    """

    def __init__(self, settings: str, token: Sequence[Any] | None) -> None:
        if not sys.executable:
            raise SetupError(
                "sys.executable is not set, expected the path of this Python: group calls run in a child "
                "process and need it"
            )
        self._owner = os.getpid()
        self._expires = float("inf") if token is None else token[1] - _LEAST_TOKEN
        self._settings = settings.encode() + b"\n"
        what = "a temporary file cannot be created, see TMPDIR"
        try:
            with ExitStack() as undo:
                # A file, not a pipe: a pipe would fill up, because its content is read only at the end.
                self._errors = undo.enter_context(tempfile.TemporaryFile())
                what = f"{sys.executable} cannot be started"
                self._process, self._socket = start_child(MODULE, os.environ, self._errors)
                undo.pop_all()
        except OSError as error:
            retriable = error.errno in _BUSY
            raise SetupError(f"{what} ({error}): group calls need it", retriable=retriable) from error
        # Ends the worker if the client is never closed; also at the end of this process.
        self._finalizer = weakref.finalize(
            self, _end, self._process, self._socket, self._errors, self._owner, GRACE
        )

    @property
    def is_usable(self) -> bool:
        """Whether another call is possible: not after a fork, and only while the token is valid."""
        return self._owner == os.getpid() and time.time() < self._expires

    def ask(self, request: str, timeout: float) -> str | None:
        """
        Send a request and wait ``timeout`` seconds for the response.

        :return: the response, incomplete if the worker has ended; ``None`` after a timeout.
        """
        received = bytearray()
        end = time.monotonic() + timeout
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(self._settings + request.encode() + b"\n")
            self._settings = b""
            while not received.endswith(b"\n"):
                self._socket.settimeout(max(_LEAST, end - time.monotonic()))
                more = self._socket.recv(_PART)
                if not more:
                    break
                received += more
        except TimeoutError:
            return None
        except ConnectionError:
            # The worker has ended: the caller reads why.
            pass
        return received.decode("utf-8", "replace")

    def end(self, patience: float = GRACE) -> tuple[int, str]:
        """
        End the worker; kill it if that takes more than ``patience`` seconds.

        :return: the exit status, and the text on standard error.
        """
        self._finalizer.detach()
        return _end(self._process, self._socket, self._errors, self._owner, patience)


def start_child(
    module: str, environment: Mapping[str, str], errors: IO[bytes] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """
    Run the ``main`` of a module in another Python process.

    :param errors: file for its standard error; by default that of this process.
    :return: the process, and a socket to its standard input and output.
    :raises OSError: if it cannot be started.
    """
    root = str(Path(airflow_kafka_offsets.__file__).parents[1])
    # The child imports the package from the same place as this process.
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), root)))
    # Not pipes, because a socket has a timeout.
    ours, standard = socket.socketpair()
    with standard, ExitStack() as undo:
        undo.push(ours)
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module=module)],
            stdin=standard.fileno(),
            stdout=standard.fileno(),
            stderr=errors,
            env={**_SMALL, **environment, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        )
        undo.pop_all()
    return process, ours


def _end(
    process: subprocess.Popen[bytes], sock: socket.socket, errors: IO[bytes], owner: int, patience: float
) -> tuple[int, str]:
    sock.close()
    with errors:
        if owner != os.getpid():
            # This process is a fork of the one that started the worker.
            return 0, ""
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        finally:
            # In a finally block, because a signal may interrupt the wait.
            process.kill()
            status = process.wait()
        errors.seek(0)
        return status, errors.read().decode("utf-8", "replace")
