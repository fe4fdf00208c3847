"""
Measures several implementations of a task so that their times can be compared on a busy machine.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Contestant(NamedTuple):
    """One implementation of a task."""

    task: str
    """The task, such as ``1,000 partitions``. All contestants of a task must return the same answer."""
    who: str
    call: Callable[[], object]
    """Runs the task once and returns the answer; ``None`` is not compared."""


class Target(NamedTuple):
    """A limit that a measured value must meet."""

    text: str
    measured: float
    limit: float
    at_least: bool
    unit: str = "times"

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass
class Section:
    """The measurements of one subject."""

    title: str
    times: Times
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    """A table that is shown instead of the times."""


class Times:
    """
    The seconds of each contestant, round by round.

    :param seconds: (task, who) -> the seconds of each round.
    """

    def __init__(self, seconds: Mapping[tuple[str, str], Sequence[float]]) -> None:
        self._seconds = seconds

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self._seconds))

    @property
    def everybody(self) -> list[str]:
        return list(dict.fromkeys(who for _, who in self._seconds))

    def has(self, task: str, who: str) -> bool:
        return (task, who) in self._seconds

    def median(self, task: str, who: str) -> float:
        return statistics.median(self._seconds[task, who])

    def best(self, task: str, who: str) -> float:
        return min(self._seconds[task, who])

    def ratio(self, slow: tuple[str, str], fast: tuple[str, str]) -> float:
        """Return the median of the rounds' ratios: a round compares runs within the same few seconds."""
        rounds = zip(self._seconds[slow], self._seconds[fast], strict=True)
        return statistics.median(one / other for one, other in rounds)


def interleaved(contestants: Iterable[Contestant], rounds: int, *, warm: bool = True) -> Times:
    """
    Run every contestant once in each round, in a different order each time.

    :param warm: whether to run every contestant once before the rounds, and compare the answers.
    """
    todo = list(contestants)
    if warm:
        _compare({(one.task, one.who): one.call() for one in todo})
    seconds: dict[tuple[str, str], list[float]] = {(one.task, one.who): [] for one in todo}
    order = list(todo)
    for _ in range(rounds):
        random.shuffle(order)
        for one in order:
            began = time.perf_counter()
            one.call()
            seconds[one.task, one.who].append(time.perf_counter() - began)
    return Times(seconds)


def _compare(answers: Mapping[tuple[str, str], object]) -> None:
    first: dict[str, tuple[str, object]] = {}
    for (task, who), answer in answers.items():
        if answer is None:
            continue
        other, expected = first.setdefault(task, (who, answer))
        if answer != expected:
            raise SystemExit(f"{task}: {other} says {expected!r}, and {who} says {answer!r}")
