"""
The pace of a wait: how fast the backlog shrinks, and when it will be empty.

A position moves in steps: Spark commits once a batch, a consumer every few seconds. Between these steps, new
records make the backlog grow. So only polls at which the backlog has fallen count, and the pace is measured
from fall to fall. No pace is reported before there are enough falls, if the falls are uneven, if they are not
much larger than the rises between them, or if the next fall is overdue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

FALLS = 8
"""Largest number of falls that are kept."""

ENOUGH = 4
"""Smallest number of falls for a pace."""

_UNEVEN = 3.0
"""Largest accepted ratio between the rates of the two halves of the falls."""

_ABOVE_RISES = 3
"""The falls together must be at least this multiple of the largest rise between two; less may be chance."""

_OVERDUE = 2.0
"""Multiple of the longest time between two falls after which the wait counts as stalled."""

_SLOWEST = 0.1 / 86_400
"""Lowest rate that is reported, in records per second; a lower one would be shown as 0.0 a day."""


@dataclass(frozen=True)
class Pace:
    """
    The rate of a wait, and an estimate of its remaining time.

    :param rate: records per second by which the backlog shrinks, net of new records.
    :param seconds: estimated seconds until the backlog is empty; ``None`` if the partition that is furthest
        behind does not move.
    :param read: records by which the backlog has shrunk since the first poll.
    """

    rate: float
    seconds: float | None
    read: int
    first_backlog: int

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON with rounded numbers, because they are estimates."""
        seconds = None if self.seconds is None else round(self.seconds)
        return {"records_per_second": float(f"{self.rate:.3g}"), "seconds_left": seconds}

    def text(self, *, moving: bool) -> str:
        """Return the pace as a line for the log; ``moving`` if the target moves, like the log end."""
        rate = rate_text(self.rate)
        left = "" if self.seconds is None else f", about {estimate_text(self.seconds)}"
        if moving:
            return f"lag falls by {rate} net{left and f'{left} to the threshold'}"
        return f"{self.read:,} of {self.first_backlog:,} read, {rate}{left}"


class PolledBacklog(NamedTuple):
    """The backlog at one poll."""

    at: float
    """Time of the poll, in seconds since 1970."""
    amounts: tuple[int, ...]
    """Amounts that must all become 0; the rate is that of the first one."""
    rise: int = 0
    """Rise of the first amount since the last fall."""


@dataclass(frozen=True)
class ProgressHistory:
    """
    The backlogs of past polls that the pace is computed from.

    :param first: the largest backlog so far; the first one, unless a position moved back.
    :param falls: the last polls with a smaller backlog than the poll before; the backlogs in this list
        decrease.
    """

    first: int = 0
    last: PolledBacklog | None = None
    falls: tuple[PolledBacklog, ...] = ()

    def after_poll(self, at: float, amounts: Sequence[int]) -> ProgressHistory:
        """Record a poll; without amounts the backlog is unknown, and the history restarts."""
        if not amounts:
            return ProgressHistory()
        this, last = PolledBacklog(at, tuple(amounts)), self.last
        # The clock went back, or the partitions have changed.
        if last is None or at <= last.at or len(last.amounts) != len(amounts):
            return ProgressHistory(amounts[0], this)
        change, falls = amounts[0] - last.amounts[0], self.falls
        if change < 0:
            fall = this._replace(rise=last.rise)
            falls = (*falls, fall)[-FALLS:] if falls and fall.amounts[0] < falls[-1].amounts[0] else (fall,)
        else:
            this = this._replace(rise=last.rise + change)
        return ProgressHistory(max(self.first, amounts[0]), this, falls)

    @property
    def pace(self) -> Pace | None:
        """The pace; ``None`` if it cannot be estimated reliably."""
        if self.last is None or len(self.falls) < ENOUGH or not self.last.amounts[0]:
            return None
        # The middle fall belongs to both halves, because each half is measured from fall to fall.
        middle = len(self.falls) // 2
        halves = sorted(_rate(part, 0) for part in (self.falls[: middle + 1], self.falls[middle:]))
        longest = max(later.at - earlier.at for earlier, later in pairwise(self.falls))
        since = self.last.at - self.falls[-1].at
        fall = self.falls[0].amounts[0] - self.falls[-1].amounts[0]
        if (
            halves[1] > _UNEVEN * halves[0]
            or since > _OVERDUE * longest
            or fall < _ABOVE_RISES * max(each.rise for each in self.falls[1:])
        ):
            return None
        rate = _rate(self.falls, 0)
        if rate < _SLOWEST:
            return None
        return Pace(rate, self._seconds(since), self.first - self.last.amounts[0], self.first)

    def _seconds(self, since: float) -> float | None:
        left = []
        for which, amount in enumerate(self.falls[-1].amounts):
            rate = _rate(self.falls, which)
            if amount and rate <= 0:
                return None
            left.append(amount / rate if amount else 0.0)
        seconds = max(left) - since
        return seconds if seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Return the history as plain JSON; Airflow refuses tuples in a task's state."""
        if self.last is None:
            return {}
        last, *falls = ([at, [*amounts], rise] for at, amounts, rise in (self.last, *self.falls))
        return {"first": self.first, "last": last, "falls": falls}

    @classmethod
    def from_json(cls, value: object) -> ProgressHistory:
        """Read the result of :meth:`as_json`; any other value gives an empty history."""
        try:
            last, *falls = (
                PolledBacklog(float(at), tuple(int(amount) for amount in amounts), int(rise))
                for at, amounts, rise in (value["last"], *value["falls"])  # type: ignore[index]
            )
            first = int(value["first"])  # type: ignore[index]
        # Another version or a user may have written the value; an estimate does not justify an error.
        except (TypeError, ValueError, KeyError, OverflowError):
            return cls()
        rising = all(earlier.at < later.at for earlier, later in pairwise(falls))
        alike = len({len(each.amounts) for each in (last, *falls)}) == 1 and last.amounts
        return cls(first, last, tuple(falls)) if rising and alike else cls()


def rate_text(rate: float) -> str:
    """Return a rate in the smallest unit, up to days, with a value of at least 1: ``310/s``, ``3/h``."""
    units = (("s", 1), ("min", 60), ("h", 3_600))
    unit, size = next((each for each in units if rate * each[1] >= 1), ("d", 86_400))
    number = rate * size
    return f"{number:,.0f}/{unit}" if number >= 10 else f"{number:.1f}/{unit}"


def estimate_text(seconds: float) -> str:
    """Return an estimated duration in one unit: ``4 min``, ``1.5 h``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            number = seconds / size
            return f"{round(number, 1):g} {unit}" if number < 3 else f"{round(number):,} {unit}"
    return "a minute" if seconds >= 45 else "half a minute" if seconds >= 20 else "a few seconds"


def _rate(falls: Sequence[PolledBacklog], which: int) -> float:
    first, last = falls[0], falls[-1]
    return (first.amounts[which] - last.amounts[which]) / (last.at - first.at)
