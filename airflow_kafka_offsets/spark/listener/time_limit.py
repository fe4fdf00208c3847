"""Calls that may never return: they are made on daemon threads, and waited for with a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NoThreadError(TimeoutError):
    """Python is ending, and starts no threads any more: nothing was called."""


class DaemonCall(Generic[T]):
    """
    A call of a function on a daemon thread of its own, which begins at once.

    :param name: of the thread.
    :raises NoThreadError: if there can be no thread.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._returned: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._call, args=[function], name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoThreadError(f"no thread for {name}: {error}") from error

    @property
    def ended(self) -> bool:
        """Whether the function has returned, or raised."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> T:
        """
        Wait for the function and return what it returns. What it raises is raised here.

        :param seconds: how long to wait; ``None`` = until it returns.
        :raises TimeoutError: if it has not returned by then; the call goes on.
        """
        self._thread.join(seconds)
        if self._raised:
            raise self._raised[0]
        if not self._returned:
            raise TimeoutError(f"no answer within {seconds:.3g} s")
        return self._returned[0]

    def _call(self, function: Callable[[], T]) -> None:
        try:
            self._returned.append(function())
        except BaseException as error:  # noqa: BLE001  # it is raised again where somebody waits
            self._raised.append(error)


class LimitedCalls:
    """
    Calls to a server that may be gone.

    While a call has not returned although its time is up, no other one is begun: it would not return either.

    :param name: of the threads.
    :param seconds: how long a call is waited for.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self.seconds = seconds
        self._name = name
        self._late: DaemonCall[Any] | None = None

    @property
    def stuck(self) -> bool:
        """Whether a call has not returned although its time is up."""
        return self._late is not None and not self._late.ended

    def __call__(self, function: Callable[[], T]) -> T:
        """
        Call a function and return what it returns.

        :raises TimeoutError: if it does not return in time, or an earlier one has not returned yet.
        """
        if self.stuck:
            raise TimeoutError("an earlier call was not answered yet")
        call = DaemonCall(function, self._name)
        try:
            return call.wait(self.seconds)
        except TimeoutError:
            self._late = call
            raise
