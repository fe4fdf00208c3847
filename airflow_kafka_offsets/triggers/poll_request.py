"""Requests to poll for a wait."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.waits.wait import Reading, Wait

log = logging.getLogger(__name__)

FLOOR = 1.0
"""Seconds between two polls of one wait, at least."""

EARLY = 5.0
"""Seconds by which a poll may come early, at most: but not by more than half of the interval."""


@dataclass(eq=False)
class PollRequest:
    """
    Asks for a poll every ``interval`` seconds.

    :param interval: seconds between two polls; doubled after each one that was due, up to ``longest``.
    :param ends: when the wait ends, by the monotonic clock: there is a poll then, whatever the interval is.
    :param loop: where the outcomes are awaited.
    """

    wait: Wait
    interval: float
    longest: float
    ends: float
    loop: asyncio.AbstractEventLoop
    checkpoint: SparkCheckpoint | None = None
    outcomes: asyncio.Queue[Reading | Exception] = field(default_factory=asyncio.Queue)
    due: float = 0.0
    early: float = 0.0
    """When it may be polled because others are, to be in step with them afterwards."""
    in_trouble: bool = False

    def set_outcome(self, outcome: Reading | Exception) -> None:
        """Give an outcome to whoever awaits it."""
        try:
            self.loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)
        except RuntimeError:
            log.debug("Nobody awaits the outcome any more: the event loop is closed")

    def schedule(self, now: float, stretch: float) -> None:
        """Set when the next poll is due, after one at ``now``."""
        was_due = now >= self.due
        pause = max(FLOOR, self.interval) * stretch
        self.due = now + pause
        # After that there was a poll at the end, and no further one is due by it.
        if now < self.ends:
            self.due = min(self.due, self.ends)
        self.early = self.due - min(EARLY, pause / 2)
        if was_due:
            self.interval = max(self.interval, min(self.interval * 2, self.longest))
