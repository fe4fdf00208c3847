"""A cache that computes each value once for all concurrent requests."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """
    Computes the value of a key; concurrent requests for the key wait for the same value.

    :param seconds: seconds for which a value is returned from the cache.
    :param size: returns the size of a value; by default ``max_size`` is a number of values.
    """

    def __init__(self, seconds: float, max_size: int, size: Callable[[V], int] = lambda _: 1) -> None:
        self._seconds = seconds
        self._max_size = max_size
        self._size_of = size
        self._size = 0
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[V]] = {}

    def get_known(self, key: K, seconds: float | None = None) -> V | None:
        """Return the cached value of a key if it is new enough, else ``None``."""
        made_at, value = self._values.get(key, (None, None))
        within = self._seconds if seconds is None else seconds
        if made_at is None or time.monotonic() - made_at >= within:
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Put a value into the cache; those that were not used for longest are dropped."""
        if key in self._values:
            self._size -= self._size_of(self._values.pop(key)[1])
        self._values[key] = (time.monotonic(), value)
        self._size += self._size_of(value)
        while self._size > self._max_size:
            self._size -= self._size_of(self._values.popitem(last=False)[1][1])

    async def get(self, key: K, make: Callable[[], Awaitable[V]], seconds: float | None = None) -> V:
        """
        Return the value of a key, which is at most ``seconds`` old; compute it if necessary.

        A cancelled request does not cancel the computation for the others. A failure is not cached.
        """
        if (value := self.get_known(key, seconds)) is not None:
            return value
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(self._make(key, make))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _make(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await make()
            self.put(key, value)
            return value
        finally:
            del self._under_way[key]
