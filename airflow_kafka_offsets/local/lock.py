"""How do two processes on this machine keep out of each other's way?"""

from __future__ import annotations

import contextlib
import fcntl
import time
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def one_at_a_time(
    lock: Path, doing: str, timeout: float, progress: Callable[[str], None] | None = None
) -> Iterator[None]:
    """
    Hold ``lock`` within the ``with`` block; the kernel lets go of it however the process ends.

    :param lock: a file, created if need be.
    :param doing: what another process that holds it is doing, for the texts: ``"starting Kafka"``.
    :param timeout: seconds to wait for it.
    :param progress: called with a line of text if there is something to wait for.
    :raises SetupError: if it was not free in time.
    """
    deadline = time.monotonic() + timeout
    with lock.open("w") as file:
        while not _taken(file.fileno()):
            if progress:
                progress(f"waiting for another process that is {doing}")
                progress = None
            if time.monotonic() > deadline:
                raise SetupError(
                    f"another process was still {doing} after {timeout:.0f} s (it holds {lock}): "
                    "wait for it or end it, and try again"
                )
            time.sleep(0.1)
        yield


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
