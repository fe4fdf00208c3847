"""Clean-up after an error, for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

THREAD = "tidying up"
LIMIT = 5.0


def tidy_up(call: Callable[[], object]) -> None:
    """
    Do what should be done after an error, ignoring its own errors, and wait for it :data:`LIMIT` seconds.

    The error may be the time limit of a task whose storage does not answer: nothing would end a second wait.
    """

    def run() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=run, name=THREAD, daemon=True)
    thread.start()
    thread.join(LIMIT)
