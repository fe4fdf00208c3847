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
"""Minimum seconds between two polls of one wait."""

EARLY = 5.0
"""Maximum seconds by which a poll may come early; half of the interval if that is shorter."""


@dataclass(eq=False)
class PollRequest:
    """
    Requests a poll every ``interval`` seconds.

    :param interval: seconds between two polls; doubled after each poll that was due, up to ``longest``.
    :param ends: end of the wait by the monotonic clock: a last poll is due then, regardless of the interval.
    :param loop: event loop in which the outcomes are awaited.
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
    """Time from which the request may join a round for other requests, to be in step with them."""
    in_trouble: bool = False

    def set_outcome(self, outcome: Reading | Exception) -> None:
        """Pass an outcome to the wait's event loop."""
        try:
            self.loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)
        except RuntimeError:
            log.debug("The outcome is dropped, because the event loop of the wait is closed")

    def schedule(self, now: float, stretch: float) -> None:
        """Set when the next poll is due, after a poll at ``now``."""
        was_due = now >= self.due
        pause = max(FLOOR, self.interval) * stretch
        self.due = now + pause
        # After the end of the wait its last poll is done, so the end no longer sets the due time.
        if now < self.ends:
            self.due = min(self.due, self.ends)
        self.early = self.due - min(EARLY, pause / 2)
        if was_due:
            self.interval = max(self.interval, min(self.interval * 2, self.longest))
