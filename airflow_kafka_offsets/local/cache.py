"""The package's cache directory, and locks between processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from airflow_kafka_offsets.errors import SetupError

try:
    import filelock
    import platformdirs
except ImportError as error:
    missing = f"{error.name} is not installed" if error.name else f"a library cannot be imported ({error})"
    raise SetupError(f"{missing}: pip install 'airflow-kafka-offsets[demo]'") from error

log = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Return ``$AIRFLOW_KAFKA_OFFSETS_CACHE`` or the platform's cache directory; do not create it."""
    chosen = os.environ.get("AIRFLOW_KAFKA_OFFSETS_CACHE")
    return Path(chosen).absolute() if chosen else platformdirs.user_cache_path("airflow-kafka-offsets")


@contextlib.contextmanager
def lock_file(lock: Path, doing: str, timeout: float) -> Iterator[None]:
    """
    Lock a file within the ``with`` block; the kernel releases the lock however the process ends.

    :param doing: the action of the process that has the lock, for messages: ``"starting Kafka"``.
    :raises SetupError: if the lock is not free in time.
    """
    guard = filelock.FileLock(lock)
    try:
        guard.acquire(blocking=False)
    except filelock.Timeout:
        log.info("waiting for another process that is %s", doing)
        try:
            guard.acquire(timeout=timeout)
        except filelock.Timeout:
            raise SetupError(
                f"another process was still {doing} after {timeout:.0f} s (it has locked {lock}): "
                "wait for it or end it, and try again"
            ) from None
    try:
        yield
    finally:
        guard.release()
