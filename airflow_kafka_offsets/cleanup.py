"""Clean-up after an error, which must not hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

THREAD = "clean-up"
LIMIT = 5.0


def clean_up(error: BaseException, call: Callable[[], object]) -> None:
    """
    Call a clean-up function after an error, and ignore errors of the function.

    If the task was ended from outside, such as by a timeout, its storage may be the part that does not
    answer, and nothing would end a second wait. The function then gets at most :data:`LIMIT` seconds.
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
