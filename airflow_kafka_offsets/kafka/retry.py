"""Repeats a call until it succeeds, fails permanently, or runs out of time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, wait_random_exponential

from airflow_kafka_offsets.kafka.failures import TEMPORARY, BackgroundErrors, CallError, Deadline

T = TypeVar("T")

_FIRST_ATTEMPT = 1.0
"""Seconds of the first attempt, which finds a wrong password."""
# Seconds: a shorter attempt gets no response, and its timeout would hide the previous attempt's error.
_LEAST = 0.1


def retry_until(
    deadline: Deadline,
    attempt: Callable[[float], T],
    background_errors: Callable[[], BackgroundErrors] = BackgroundErrors,
    temporary: Collection[str] = (),
    first_attempt: float = _FIRST_ATTEMPT,
) -> T:
    """
    Make a call until it succeeds, fails permanently, or runs out of time.

    :param attempt: makes the call; takes the seconds of this attempt.
    :param background_errors: returns the errors that the client reported in the background; a cause that
        waiting does not fix ends the call.
    :param temporary: codes that are temporary for this call, in addition to those that always are.
    :param first_attempt: seconds of the first attempt; each later one may take twice as long.
    """

    def again(error: BaseException) -> bool:
        if not isinstance(error, CallError) or error.failure.code not in codes:
            return False
        seen = background_errors()
        seen.probe(error.failure, deadline.seconds_left)
        return seen.fatal is None

    codes = TEMPORARY | frozenset(temporary)
    # Random, so that clients do not all reconnect to a restarted broker at the same moment.
    backoff = wait_random_exponential(multiplier=0.1, max=2.0)
    numbers = count()
    retrying = Retrying(
        stop=lambda _: deadline.seconds_left < _LEAST,
        wait=lambda state: min(backoff(state), max(0.0, deadline.seconds_left - _LEAST)),
        retry=retry_if_exception(again),
        reraise=True,
    )
    return retrying(
        lambda: attempt(max(_LEAST, min(deadline.seconds_left, first_attempt * 2 ** min(next(numbers), 20))))
    )
