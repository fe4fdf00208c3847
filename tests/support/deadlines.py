"""Waits for conditions, each with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE = 60.0
TICK = 0.05

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "", seconds: float = DEADLINE, tick: float = TICK) -> T:
    """Wait until a condition holds, and return what it found; the test fails if that takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what or condition}"
        time.sleep(tick)
    return found


async def until_async(condition: Callable[[], T], what: str = "", seconds: float = DEADLINE) -> T:
    """Wait in an event loop as :func:`until` does."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what or condition}"
        await asyncio.sleep(TICK / 5)
    return found
