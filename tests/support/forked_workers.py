"""Admin workers as copies of a process that has imported the client: a test run needs over a thousand."""

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.forkserver import ForkServer, get_inherited_fds, read_signed
from types import SimpleNamespace
from typing import Any, NamedTuple

from airflow_kafka_offsets.kafka import worker


def forked_workers() -> Iterator[None]:
    """Let :mod:`airflow_kafka_offsets.kafka.worker` start its workers by a fork until the end of the run."""
    server = ForkServer()  # it ends with this process
    server.set_forkserver_preload([worker.MODULE, worker.__name__])
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


class Copy(NamedTuple):
    """What a copy runs, in place of a :class:`multiprocessing.Process`."""

    environment: dict[str, str]

    def _bootstrap(self, _: int) -> None:
        from airflow_kafka_offsets.kafka.admin_worker import main

        for number, file in enumerate(get_inherited_fds() or ()):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(self.environment)
        main()


class Forked:
    """What the package uses of :class:`subprocess.Popen`."""

    def __init__(self, server: ForkServer, environment: dict[str, str], standard: list[int]) -> None:
        self._status, order = server.connect_to_new_process(standard)
        with os.fdopen(order, "wb") as file:
            for value in ({"sys_path": sys.path}, Copy(environment)):
                pickle.dump(value, file)
        self.returncode: int | None = None
        self.pid = read_signed(self._status)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative after a signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("admin worker", timeout or 0)
            self.returncode = int(read_signed(self._status))
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        """Kill the copy, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
