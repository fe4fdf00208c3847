"""Runs the admin worker in a child process, so that this process survives a crash of the client."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import BrokerAuthenticationError, ClientCrashedError, SetupError, UsageError
from airflow_kafka_offsets.kafka.config import scrubber
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import Causes, Failed, Failure
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.text import shorten

_MODULE = "airflow_kafka_offsets.kafka.admin_worker"
# As python -m, but what lies in the working directory is not taken for a module (-P is Python 3.11's).
_START = f"import sys; sys.path = [at for at in sys.path if at]; from {_MODULE} import main; main()"
_CRASHES = 2
"""A worker that dies is started again this often within a call."""
_GRACE = 1.0
"""Seconds that a worker may take beyond its own deadline, or to end, before it is killed."""
_CLOSE = 3.0
_PIPE = 1 << 20
"""Bytes that are read at once."""
_SMALL = {"MALLOC_ARENA_MAX": "2"}
"""GNU's allocator keeps memory for each thread, and the client has many that do little."""
_LEAST_TOKEN = 60.0
"""Seconds that a token of the user's function must still be valid, or a worker with a new one is started."""


class AdminProcess:
    """
    Makes the calls of an AdminClient in a worker process, which starts with the first call and is kept.

    librdkafka can abort the process that makes such a call, after a time-out or when a coordinator moves.
    After a failure that may pass the worker is replaced: its client may be the reason. Calls of several
    threads wait for each other.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._scrub = scrubber(config)
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._closed = False

    def close(self) -> None:
        """End the worker; waits a few seconds at most. A running call ends it then."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._end()
            finally:
                self._lock.release()

    def run(self, call: Call, name: str, arguments: Any = None, *, most_crashes: float = _CRASHES) -> Any:
        """
        Make one of the worker's ``CALLS``; again if the worker dies or the error passes.

        :param most_crashes: how often the worker may die before that is the error.
        """
        causes = Causes(self._scrub)
        crashes: list[str] = []

        def attempt(_: float) -> Any:
            # A worker takes long to start, so that it gets all the time there is.
            try:
                return self._attempt(call, name, arguments, causes)
            except ClientCrashedError as error:
                crashes.append(str(error))
                if len(crashes) > most_crashes:
                    raise
                raise Failed(Failure("_RETRY", str(error))) from None

        try:
            return until(call, attempt, lambda: causes)
        except Failed as error:
            if crashes and error.failure.code == "_RETRY":
                raise ClientCrashedError(f"{call.what}: {crashes[-1]}") from None
            raise call.explain(error.failure, causes=causes) from None
        except ClientCrashedError as error:
            raise ClientCrashedError(f"{call.what}: {error}") from None

    def failure(self, values: Sequence[str] | None) -> Failure | None:
        """Return a failure that the worker has sent, without credentials in it; ``None`` for none."""
        return Failure(*values).scrubbed(self._scrub) if values else None

    def _attempt(self, call: Call, name: str, arguments: Any, causes: Causes) -> Any:
        with self._alone(call) as worker:
            # Both processes have the same clock, and the worker may take long to start.
            end = time.monotonic() + max(0.5, call.left)
            request = {"call": name, "arguments": arguments, "end": end}
            try:
                output = worker.ask(json.dumps(request), call.left + _GRACE)
            except BaseException:
                # Such as a signal: the response that is still to come must not be taken for the next one.
                self._worker = None
                worker.end(0)
                raise
            try:
                response = json.loads(output or "")
            except ValueError:
                response = None
            if not isinstance(response, dict):
                self._worker = None
                status, errors = worker.end(0 if output is None else _GRACE)
                if output is None:
                    raise Failed(Failure("_TIMED_OUT", "the call did not end in time"))
                raise self._died(status, errors)
            if response["last"]:
                self._end()
        causes.clear()
        causes.add(Failure(*cause) for cause in response["causes"])
        if (failure := self.failure(response["failure"])) is not None:
            raise Failed(failure)
        return response["result"]

    @contextmanager
    def _alone(self, call: Call) -> Iterator[Worker]:
        """Keep out the calls of other threads; start a worker if there is none."""
        if not self._lock.acquire(timeout=call.left):
            raise Failed(Failure("_TIMED_OUT", "another call of this client took all of the time"))
        try:
            if self._closed:
                raise UsageError(f"{call.what}: this client was closed; make a new one")
            if self._worker is not None and not self._worker.usable:
                self._end()
            if self._worker is None:
                plain = {key: value for key, value in self._config.items() if not callable(value)}
                token = _token(self._config.get("oauth_cb"), plain)
                self._worker = Worker(json.dumps({"config": plain, "token": token}), token)
            yield self._worker
        finally:
            if self._closed:
                self._end()
            self._lock.release()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _died(self, status: int, errors: str) -> Exception:
        lines = [line for line in errors.splitlines() if line.strip()]
        if status < 0:
            reason = next((line for line in lines if "ssert" in line), "")
            name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
            text = f"the Kafka client died by {name} in its process {reason}".strip()
            return ClientCrashedError(
                f"{self._scrub(shorten(text, 300))}; this process is not affected, try again"
            )
        last = self._scrub(shorten(lines[-1], 300)) if lines else "it said nothing"
        return SetupError(
            f"{sys.executable} -m {_MODULE} ended with status {status} and without an answer ({last}): group "
            "calls need a Python that can import this package and confluent-kafka"
        )


class Worker:
    """
    The admin worker in another Python, which ends when this process does.

    :param settings: the first line of its standard input: it may hold a password, so it must not be an
        argument.
    :param token: its token, if it has one: with the time in seconds at which it expires.
    """

    def __init__(self, settings: str, token: Sequence[Any] | None = None) -> None:
        if not sys.executable:
            raise SetupError(
                "sys.executable is not set, expected the path of this Python: group calls run in a child "
                "process and need it"
            )
        self._owner = os.getpid()
        self._expires = float("inf") if token is None else token[1] - _LEAST_TOKEN
        self._unsent = settings.encode() + b"\n"
        root = str(Path(airflow_kafka_offsets.__file__).parents[1])
        # The worker finds the package where this process found it.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        # Not a pipe, which would be full one day: nobody reads it before the end.
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
        # For those who do not close their client; also at the end of this process.
        self._finalizer = weakref.finalize(self, _end, self._process, self._errors, self._owner)

    @property
    def usable(self) -> bool:
        """Whether another call can be made: in the same process, and with a token that is still valid."""
        return self._owner == os.getpid() and time.time() < self._expires

    def ask(self, request: str, timeout: float) -> str | None:
        """
        Send a request and wait for the response, so many seconds.

        :return: the response, or what there is of it if the worker has ended; ``None`` if it takes too long.
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
        """Send what the pipe takes now; return whether there is more."""
        try:
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BrokenPipeError:  # the worker has ended, which shows in its output
            self._unsent = b""
        return bool(self._unsent)

    def end(self, patience: float = _GRACE) -> tuple[int, str]:
        """
        End the worker, and kill it if that takes more than so many seconds.

        :return: its exit status, and what it printed as errors.
        """
        self._finalizer.detach()
        return _end(self._process, self._errors, self._owner, patience)


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise SetupError(
            f"no temporary file can be made ({error}): set TMPDIR; group calls need one"
        ) from error


def _end(
    process: subprocess.Popen[bytes], errors: IO[bytes], owner: int, patience: float = _GRACE
) -> tuple[int, str]:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    with errors:
        if owner != os.getpid():
            # This process is a copy of the one that started the worker.
            return 0, ""
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
        status = process.wait()
        errors.seek(0)
        return status, errors.read().decode("utf-8", "replace")


def _token(oauth_cb: Callable[[str], Any] | None, config: Mapping[str, Any]) -> list[Any] | None:
    """Return a token from the user's function, which only this process may have."""
    if oauth_cb is None:
        return None
    try:
        return list(oauth_cb(str(config.get("sasl.oauthbearer.config", ""))))
    except Exception as error:  # noqa: BLE001  # it is the user's, and its text may hold anything
        raise BrokerAuthenticationError(
            f"oauth_cb of the Kafka configuration gave no token ({type(error).__name__}): correct the "
            "connection"
        ) from None
