"""Faults in a worker: its reads, writes and calls are counted, and one of them is struck."""

import errno
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.session import Session
from tests.soak.schedule import Fault

FAULT_THREAD = "fault"
_FOREVER = 3_600.0
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.mkdir", "os.rename", "os.remove")


class Steps:
    """
    Counts what an action does outside its own memory, and lets its fault come at one of the steps.

    A step is an operation on a file below the checkpoint, or a call of the Kafka client.

    :param root: the checkpoint.
    :param ask: lets the parent strike a connection or a broker, and returns when it has.
    """

    def __init__(self, root: str, fault: Fault | None, ask: Callable[[], None]) -> None:
        self.count = 0
        self.struck = False
        self._root = root
        self._fault = fault
        self._ask = ask
        self.stalled = False
        """Whether the storage no longer answers anything."""
        self._full = False
        self._over = False
        self._lock = threading.RLock()

    def install(self) -> None:
        """Count from now on, in this process, until :meth:`end`."""
        sys.addaudithook(self._audit)
        if self._fault is not None and self._fault.kind == "stall-endless":
            # As for a task with an execution_timeout.
            signal.signal(signal.SIGALRM, _time_is_over)
        calling, step = Session.begin_call, self._step

        @contextmanager
        def counted(self: Session, what: str, timeout: float | None = None) -> Iterator[Call]:
            step()
            with calling(self, what, timeout) as call:
                yield call

        Session.begin_call = counted  # type: ignore[method-assign]

    def end(self) -> None:
        """Count no more."""
        self._over = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._over or event not in ("open", "os.listdir", *_CHANGES):
            return
        path = arguments[0]
        if not isinstance(path, (str, Path)) or not str(path).startswith(self._root):
            return
        self._step(on_disk=True)
        if self.stalled:
            time.sleep(_FOREVER)
        writes = event in ("os.mkdir", "os.rename") or (event == "open" and arguments[2] & _WRITES)
        if self._full and writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _step(self, *, on_disk: bool = False) -> None:
        with self._lock:
            if self._over:
                return
            self.count += 1
            fault = self._fault
            if fault is None or self.struck or self.count < fault.step:
                return
            if fault.place == "disk" and not on_disk:
                return
            self.struck = True
        self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "kill-during":
            killer = threading.Thread(target=_kill_soon, args=(fault.amount,), name=FAULT_THREAD, daemon=True)
            killer.start()
        elif fault.kind == "disk-full":
            self._full = True
        elif fault.kind == "stall":
            time.sleep(fault.amount)
        elif fault.kind == "stall-endless":
            self.stalled = True
            signal.setitimer(signal.ITIMER_REAL, fault.amount)
        elif fault.kind == "small-quota":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault.amount), resource.RLIM_INFINITY))
        elif fault.kind == "disk-error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        else:
            self._ask()


def _time_is_over(*_: object) -> None:
    raise AirflowTaskTimeout


def _kill_soon(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
