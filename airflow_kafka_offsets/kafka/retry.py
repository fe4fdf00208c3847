"""Repeats a call until it succeeds, fails for good, or its time is up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, wait_random_exponential

from airflow_kafka_offsets.kafka.failures import (
    RETRIABLE,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Deadline,
)

T = TypeVar("T")

FIRST_ATTEMPT = 1.0
"""Seconds of the first attempt; each later one may take twice as long. A wrong password shows after it."""
# Seconds: in less time no attempt is answered, and its time-out would hide the error of the last one.
_LEAST = 0.1


def retry_until(
    deadline: Deadline,
    attempt: Callable[[float], T],
    background_errors: Callable[[], BackgroundErrors] = BackgroundErrors,
    passing: Collection[str] = (),
) -> T:
    """
    Make a call until it succeeds, fails for good, or the time is up.

    :param attempt: makes the call, in so many seconds.
    :param background_errors: what was seen in the background; a cause that waiting does not fix ends the
        call.
    :param passing: errors that pass in this call, besides those that always do.
    :raises Failed: with the last error.
    """

    def again(error: BaseException) -> bool:
        if not isinstance(error, CallError) or error.failure.code not in passes:
            return False
        seen = background_errors()
        seen.probe(error.failure, deadline.seconds_left)
        return seen.fatal is None

    passes = RETRIABLE | UNKNOWN_PARTITION | frozenset(passing)
    # Random, so that all clients of a broker that was away do not come back in one moment.
    backoff = wait_random_exponential(multiplier=0.1, max=2.0)
    numbers = count()
    retrying = Retrying(
        stop=lambda _: deadline.seconds_left < _LEAST,
        wait=lambda state: min(backoff(state), max(0.0, deadline.seconds_left - _LEAST)),
        retry=retry_if_exception(again),
        reraise=True,
    )
    return retrying(
        lambda: attempt(max(_LEAST, min(deadline.seconds_left, FIRST_ATTEMPT * 2 ** next(numbers))))
    )
