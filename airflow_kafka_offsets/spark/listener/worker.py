"""How is work done beside Spark's own threads, on a thread that is there only as long as it is needed?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_AGAIN_AFTER_ERROR = 60.0


class Worker:
    """
    A daemon thread that calls a function whenever it was woken, and again when that asks for it.

    :param step: does what is to be done now, and returns the seconds until it wants to be called again at the
        latest; ``None`` when there is nothing left to wait for: the thread then ends, and the next :meth:`wake`
        starts another one.
    :param name: of the thread.
    """

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self._step = step
        self._name = name
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have the function called soon; returns at once."""
        with self._lock:
            self._woken.set()
            if self._thread is not None or self._stopped:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Python is ending, and starts no threads any more.
                log.debug("No thread for %s: %s", self._name, error)
            else:
                self._thread = thread

    def stop(self, timeout: float) -> None:
        """End the thread after the step that it is in; waits so many seconds for it."""
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
                log.exception("An error that nobody expected; it is tried again")
                pause = _AGAIN_AFTER_ERROR
            with self._lock:
                if self._stopped or (pause is None and not self._woken.is_set()):
                    self._thread = None
                    return
            self._woken.wait(pause)
