"""Unit tests have no server: what others do to a real Kafka, these do to the in-memory broker."""

import os
import shutil
from pathlib import Path

from memory_kafka import (  # noqa: F401
    bootstrap_servers,
    broker,
    client,
    delete_records,
    grow,
    holds,
    make_topic,
    member,
    memory,
    memory_connected,
    produce,
    recreate,
    send_in_transaction,
)
from moved_pipeline import commit, committed, new_query  # noqa: F401

MEMORY = Path("/dev/shm")
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > 4 * 1024**3
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    # The tests write tens of thousands of small files, which on a disk took a third of the CPU time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
