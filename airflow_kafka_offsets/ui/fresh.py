"""Values that are made once for everybody who asks within a few seconds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class _Entry:
    lock: Lock = field(default_factory=Lock)
    until: float = 0.0
    value: Any = None


class Fresh(Generic[K, V]):
    """
    Makes the value of a key; others who want it meanwhile wait for it.

    :param seconds: for which a value is given to whoever asks.
    :param most: values that are kept.
    """

    def __init__(self, make: Callable[[K], V], seconds: float, most: int) -> None:
        self._make = make
        self._seconds = seconds
        self._most = most
        self._lock = Lock()
        self._entries: OrderedDict[K, _Entry] = OrderedDict()

    def get(self, key: K) -> V:
        """Return the value of a key, as it was at most so many seconds ago."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.lock:
            if time.monotonic() >= entry.until:
                entry.value = self._make(key)
                entry.until = time.monotonic() + self._seconds
            value: V = entry.value
            return value

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._entries.clear()
