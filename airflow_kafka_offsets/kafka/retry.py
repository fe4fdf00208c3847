"""Repeats a call until it succeeds, fails for good, or its time is up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, wait_random_exponential

from airflow_kafka_offsets.kafka.failures import RETRIABLE, UNKNOWN_PARTITION, Causes, Deadline, Failed

T = TypeVar("T")

FIRST_ATTEMPT = 1.0
"""Seconds of the first attempt; each later one may take twice as long. A wrong password shows after it."""
# Seconds: in less time no attempt is answered, and its time-out would hide the error of the last one.
_LEAST = 0.1


def until(
    deadline: Deadline,
    attempt: Callable[[float], T],
    causes: Callable[[], Causes] = Causes,
    also: Collection[str] = (),
) -> T:
    """
    Make a call until it succeeds, fails for good, or the time is up.

    :param attempt: makes the call, in so many seconds.
    :param causes: what was seen in the background; a cause that waiting does not fix ends the call.
    :param also: errors that pass in this call, besides those that always do.
    :raises Failed: with the last error.
    """

    def again(error: BaseException) -> bool:
        if not isinstance(error, Failed) or error.failure.code not in passes:
            return False
        seen = causes()
        seen.find(error.failure, deadline.left)
        return seen.final is None

    passes = RETRIABLE | UNKNOWN_PARTITION | frozenset(also)
    # Random, so that all clients of a broker that was away do not come back in one moment.
    backoff = wait_random_exponential(multiplier=0.1, max=2.0)
    numbers = count()
    retrying = Retrying(
        stop=lambda _: deadline.left < _LEAST,
        wait=lambda state: min(backoff(state), max(0.0, deadline.left - _LEAST)),
        retry=retry_if_exception(again),
        reraise=True,
    )
    return retrying(lambda: attempt(max(_LEAST, min(deadline.left, FIRST_ATTEMPT * 2 ** next(numbers)))))
