"""Clean-up after an error, which must not hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

THREAD = "clean-up"
LIMIT = 5.0


def clean_up(error: BaseException, call: Callable[[], object]) -> None:
    """
    Do what should be done after an error, ignoring its own errors.

    Where the task was ended from outside its storage may be what does not answer, and nothing would end a
    second wait: then it gets :data:`LIMIT` seconds.
    """

    def run() -> None:
        with suppress(Exception):
            call()

    if isinstance(error, Exception):
        run()
        return
    thread = threading.Thread(target=run, name=THREAD, daemon=True)
    thread.start()
    thread.join(LIMIT)
