"""The parent's side of the admin worker's process; has few imports, so that the process can start early."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import SetupError

MODULE = "airflow_kafka_offsets.kafka.admin_worker"
GRACE = 1.0
"""Seconds that a worker may exceed its deadline, or take to end, before it is killed."""

# Like python -m, but does not import modules from the working directory (-P exists since Python 3.11).
_START = f"import sys; sys.path = [at for at in sys.path if at]; from {MODULE} import main; main()"
_PIPE = 1 << 20
"""Number of bytes read at once."""
_SMALL = {"MALLOC_ARENA_MAX": "2"}
"""GNU's allocator reserves memory for each thread, and the client has many threads that do little."""
_LEAST_TOKEN = 60.0
"""Minimum seconds that an oauth_cb token must still be valid; otherwise a new worker is started."""


class AdminWorker:
    """
    The admin worker in another Python process, which ends with this process.

    Call :meth:`configure` before the first request.
    """

    def __init__(self) -> None:
        if not sys.executable:
            raise SetupError(
                "sys.executable is not set, expected the path of this Python: group calls run in a child "
                "process and need it"
            )
        self._owner = os.getpid()
        self._expires = float("inf")
        self._unsent = b""
        root = str(Path(airflow_kafka_offsets.__file__).parents[1])
        # The worker imports the package from the same place as this process.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        # A file, not a pipe: a pipe would fill up, because its content is read only at the end.
        self._errors = _temporary_file()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**_SMALL, **os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
            )
        except OSError as error:
            self._errors.close()
            raise SetupError(f"{sys.executable} cannot be started ({error}): group calls need it") from error
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._stdin.fileno(), False)
        # Ends the worker if the client is never closed; also at the end of this process.
        self._finalizer = weakref.finalize(self, _end, self._process, self._errors, self._owner)

    def configure(self, settings: str, token: Sequence[Any] | None) -> None:
        """
        Give the worker its settings.

        :param settings: the first line of the worker's standard input: it may contain a password, so it must
            not be an argument.
        :param token: the worker's token, if it needs one, with its expiry time in seconds.
        """
        self._expires = float("inf") if token is None else token[1] - _LEAST_TOKEN
        self._unsent = settings.encode() + b"\n"

    @property
    def is_usable(self) -> bool:
        """Whether another call is possible: not after a fork, and only while the token is valid."""
        return self._owner == os.getpid() and time.time() < self._expires

    def ask(self, request: str, timeout: float) -> str | None:
        """
        Send a request and wait ``timeout`` seconds for the response.

        :return: the response, incomplete if the worker has ended; ``None`` after a timeout.
        """
        self._unsent += request.encode() + b"\n"
        received = bytearray()
        end = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is self._stdin:
                        if not self._send():
                            selector.unregister(self._stdin)
                    else:
                        more = os.read(self._stdout.fileno(), _PIPE)
                        received += more
                        if not more or more.endswith(b"\n"):
                            return received.decode("utf-8", "replace")
        return None

    def _send(self) -> bool:
        """Send as much as the pipe accepts; return whether there is more."""
        try:
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BrokenPipeError:  # the worker has ended: its output shows it
            self._unsent = b""
        return bool(self._unsent)

    def end(self, patience: float = GRACE) -> tuple[int, str]:
        """
        End the worker; kill it if that takes more than ``patience`` seconds.

        :return: the exit status, and the text on standard error.
        """
        self._finalizer.detach()
        return _end(self._process, self._errors, self._owner, patience)


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise SetupError(
            f"cannot create a temporary file ({error}): set TMPDIR; group calls need one"
        ) from error


def _end(
    process: subprocess.Popen[bytes], errors: IO[bytes], owner: int, patience: float = GRACE
) -> tuple[int, str]:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
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


_early: list[AdminWorker] = []


@contextmanager
def start_worker_early() -> Iterator[None]:
    """
    Start the worker of this process's next client early, so that it is ready when the client needs it.

    Importing the client takes 0.15 s in either process, so both import it in parallel. A worker that is not
    used is killed at the end. If it cannot be started, the call that needs it reports the reason.
    """
    early: list[AdminWorker] = []
    with suppress(SetupError):
        early.append(AdminWorker())
    _early.extend(early)
    try:
        yield
    finally:
        for worker in early:
            if worker in _early:
                _early.remove(worker)
                worker.end(0)


def take_worker(settings: str, token: Sequence[Any] | None) -> AdminWorker:
    """Return the worker that was started early, or a new one."""
    worker = _early.pop() if _early and _early[-1].is_usable else AdminWorker()
    worker.configure(settings, token)
    return worker
