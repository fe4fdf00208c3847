"""Daemon threads, for which Python does not wait at its end: calls with a time limit, and a worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class NoThreadError(TimeoutError):
    """Python is ending and starts no more threads: the function was not called."""


def call_on_daemon(function: Callable[[], T], name: str) -> Future[T]:
    """Call a function on a new daemon thread; the call begins immediately."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  # result() raises it
            future.set_exception(error)

    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThreadError(f"no thread for {name}: {error}") from error
    return future


class LimitedCalls:
    """Calls to a server that may not answer: while a late call runs, no other call is made."""

    def __init__(self, name: str, seconds: float) -> None:
        self.seconds = seconds
        self._name = name
        self._late: Future[Any] | None = None

    @property
    def stuck(self) -> bool:
        """Whether a late call still runs."""
        return self._late is not None and not self._late.done()

    def __call__(self, function: Callable[[], T]) -> T:
        """Call a function and return its result; raise ``TimeoutError`` while any call is late."""
        if self.stuck:
            raise TimeoutError("an earlier call was not answered yet")
        call = call_on_daemon(function, self._name)
        try:
            return call.result(self.seconds)
        except TimeoutError as error:
            self._late = call
            raise TimeoutError(f"no answer within {self.seconds:.3g} s") from error


class BackgroundThread:
    """
    A daemon thread that calls a function when it is woken, and when the function asks for it.

    :param step: does the due work, and returns the maximum seconds until its next call; ``None`` ends the
        thread, and the next :meth:`wake` starts a new one.
    """

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._name = name
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Let the thread call the function soon; return immediately."""
        with self._lock:
            self._woken.set()
            if self._thread is not None or self._stopped:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Python is ending and starts no more threads.
                log.debug("No thread for %s: %s", self._name, error)
            else:
                self._thread = thread

    def stop(self, timeout: float) -> None:
        """End the thread after its current step; wait up to ``timeout`` seconds for it."""
        with self._lock:
            self._stopped = True
            self._woken.set()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            pause: float | None
            try:
                pause = None if self._stopped else self._step()
            except Exception:
                log.exception("An unexpected error; trying again")
                pause = 60.0  # the next event wakes the thread sooner
            with self._lock:
                if self._stopped or (pause is None and not self._woken.is_set()):
                    self._thread = None
                    return
            self._woken.wait(pause)
