"""Which waits are to be looked at next?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kafka_offsets.waits.wait import Reading, Wait

log = logging.getLogger(__name__)

FLOOR = 1.0
"""Seconds between two looks of one wait, at least."""

EARLY = 5.0
"""Seconds by which a look may come early, at most: but not by more than half of the interval."""


@dataclass(eq=False)
class PollRequest:
    """
    A wait that is looked at.

    :param interval: seconds between two looks; doubled after each one that was due, up to ``longest``.
    :param ends: when the wait ends, by the monotonic clock: there is a look then, whatever the interval is.
    """

    wait: Wait
    interval: float
    longest: float
    ends: float
    loop: asyncio.AbstractEventLoop
    outcomes: asyncio.Queue[Reading | Exception]
    due: float = 0.0
    early: float = 0.0
    """From when on it may be looked at because others are, so that it is in step with them from then on."""
    in_trouble: bool = False

    def answer(self, outcome: Reading | Exception) -> None:
        """Hand an outcome to whoever awaits it."""
        try:
            self.loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)
        except RuntimeError:
            log.debug("Nobody waits for the outcome any more: the event loop is closed")

    def put_off(self, now: float, stretch: float) -> None:
        """Set when the next look is due, after one at ``now``."""
        was_due = now >= self.due
        pause = max(FLOOR, self.interval) * stretch
        self.due = now + pause
        if now < self.ends:
            self.due = min(self.due, self.ends)
        self.early = self.due - min(EARLY, pause / 2)
        if was_due:
            self.interval = max(self.interval, min(self.interval * 2, self.longest))


def next_polls(tickets: Iterable[PollRequest], now: float, groups: int) -> list[PollRequest]:
    """
    Return which waits to look for in one round, of those that may be looked at.

    What is due comes first, and what has waited longest before the others, so that nobody is left out for good.

    :param groups: how many different groups a round may ask for.
    """
    known: set[str] = set()
    taken: list[PollRequest] = []
    for ticket in sorted(tickets, key=lambda ticket: (ticket.due > now, ticket.due)):
        more = known | ticket.wait.groups
        if len(more) <= groups or not taken:
            known = more
            taken.append(ticket)
    # Within a round those come last that may take all of its time.
    return sorted(taken, key=lambda ticket: ticket.in_trouble)
