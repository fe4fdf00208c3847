"""
The pace of a wait: how fast what remains of it falls, and when nothing will remain.

A position moves in steps: Spark commits once a batch, a consumer every few seconds, and while a producer
writes, lag rises in between. So only the polls that have seen it fall count, and the pace is measured from
one fall to another. Nothing is said of it before there are enough of them, while they are uneven or not much
more than the rises in between, and when the next one is overdue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

FALLS = 8
"""Falls that are remembered at most."""

ENOUGH = 4
"""Falls from which on something is said."""

_UNEVEN = 3.0
"""How many times as fast as the other half one half of the falls may be."""

_ABOVE_RISES = 3
"""How many times the largest rise between two falls they have to be together: else it may be chance."""

_OVERDUE = 2.0
"""Multiple of the longest time between two falls after which the wait counts as standing still."""


_SLOWEST = 0.1 / 86_400
"""Records a second below which nothing is said: it would be 0.0 a day."""


@dataclass(frozen=True)
class Pace:
    """
    How fast a wait comes to its end.

    :param rate: by how many records a second what remains falls, net of what a producer adds.
    :param seconds: until nothing remains at this pace; ``None`` if the partition that is furthest behind does
        not move.
    :param read: records by which what remains has fallen since the first poll.
    :param of: what remained at the first poll.
    """

    rate: float
    seconds: float | None
    read: int
    of: int

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, rounded: the numbers are estimates."""
        seconds = None if self.seconds is None else round(self.seconds)
        return {"records_per_second": float(f"{self.rate:.3g}"), "seconds_left": seconds}

    def text(self, *, moving: bool) -> str:
        """
        Return the pace as a line for the log.

        :param moving: the target moves, as the log end does: then nobody knows how much has to be read.
        """
        rate = rate_text(self.rate)
        left = "" if self.seconds is None else f", about {estimate_text(self.seconds)}"
        if moving:
            return f"lag falls by {rate} net{left and f'{left} to the threshold'}"
        return f"{self.read:,} of {self.of:,} read, {rate}{left}"


class Remainder(NamedTuple):
    """What remained at one poll."""

    at: float
    """When, in seconds since 1970."""
    amounts: tuple[int, ...]
    """All have to become 0; the first is what the rate is of."""
    rise: int = 0
    """By how much the first one has risen since the last fall."""


@dataclass(frozen=True)
class ProgressHistory:
    """
    What remained of a wait, poll by poll, as far as its pace needs it.

    :param first: what remained at first; more, if a position went back since.
    :param last: the last poll.
    :param falls: the last polls that have seen less than the poll before, each with less than the one before
        it in this list.
    """

    first: int = 0
    last: Remainder | None = None
    falls: tuple[Remainder, ...] = ()

    def after_poll(self, at: float, amounts: Sequence[int]) -> ProgressHistory:
        """Note a poll; without amounts, what remains is not known, and it begins again."""
        if not amounts:
            return ProgressHistory()
        this, last = Remainder(at, tuple(amounts)), self.last
        # A clock that went back, or other partitions than before.
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
        """The pace; ``None`` while it cannot be said honestly."""
        if self.last is None or len(self.falls) < ENOUGH or not self.last.amounts[0]:
            return None
        # The middle fall belongs to both halves: a half is measured from fall to fall.
        middle = len(self.falls) // 2
        halves = sorted(_rate(part, 0) for part in (self.falls[: middle + 1], self.falls[middle:]))
        longest = max(later.at - earlier.at for earlier, later in pairwise(self.falls))
        since = self.last.at - self.falls[-1].at
        fall = self.falls[0].amounts[0] - self.falls[-1].amounts[0]
        uneven = halves[1] > _UNEVEN * halves[0]
        if (
            uneven
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
        """Return it as plain JSON."""
        return {"first": self.first, "last": self.last, "falls": list(self.falls)}

    @classmethod
    def from_json(cls, value: object) -> ProgressHistory:
        """Read what :meth:`as_json` wrote; anything else counts as nothing known."""
        try:
            last, *falls = (
                Remainder(float(at), tuple(int(amount) for amount in amounts), int(rise))
                for at, amounts, rise in (value["last"], *value["falls"])  # type: ignore[index]
            )
            first = int(value["first"])  # type: ignore[index]
        # Kept by another version, or by a user: an estimate is not worth an error.
        except (TypeError, ValueError, KeyError, OverflowError):
            return cls()
        rising = all(earlier.at < later.at for earlier, later in pairwise(falls))
        alike = len({len(each.amounts) for each in (last, *falls)}) == 1 and last.amounts
        return cls(first, last, tuple(falls)) if rising and alike else cls()


def rate_text(rate: float) -> str:
    """Return a rate in the unit in which it is 1 or more: ``310/s``, ``12/min``, ``3/h``; in days at most."""
    units = (("s", 1), ("min", 60), ("h", 3_600))
    unit, size = next((each for each in units if rate * each[1] >= 1), ("d", 86_400))
    number = rate * size
    return f"{number:,.0f}/{unit}" if number >= 10 else f"{number:.1f}/{unit}"


def estimate_text(seconds: float) -> str:
    """Return a duration that is only estimated, in one unit: ``4 min``, ``1.5 h``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            number = seconds / size
            return f"{round(number, 1):g} {unit}" if number < 3 else f"{round(number):,} {unit}"
    return "a minute" if seconds >= 45 else "half a minute" if seconds >= 20 else "a few seconds"


def _rate(falls: Sequence[Remainder], which: int) -> float:
    first, last = falls[0], falls[-1]
    return (first.amounts[which] - last.amounts[which]) / (last.at - first.at)
