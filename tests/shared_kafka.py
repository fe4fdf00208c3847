"""The one Kafka that all tests share, also those that another process runs at the same time."""

from __future__ import annotations

import fcntl
import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.lock import one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 180.0
WHOLE_RUN = 1800.0


class SharedKafka(NamedTuple):
    bootstrap_servers: str
    pid: int
    directory: Path


@contextmanager
def shared_kafka(directory: Path) -> Iterator[SharedKafka]:
    """
    Use the Kafka that the first process to come here starts, and the last one to leave has left alone.

    :param directory: where the processes of one test run meet.
    """
    lock, address = directory / "kafka.lock", directory / "kafka.json"
    started: EmbeddedKafka | None = None
    # A shared lock for as long as it is used: the kernel lets go of it however a process ends.
    with (directory / "kafka.users").open("w") as users:
        with one_at_a_time(lock, "starting Kafka", START):
            if not address.exists():
                started = EmbeddedKafka().start()
                kafka = SharedKafka(started.bootstrap_servers, started.pid, started.directory)
                address.write_text(json.dumps(kafka, default=str))
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            servers, pid, home = json.loads(address.read_text())
            yield SharedKafka(servers, pid, Path(home))
        finally:
            if started is not None:
                _wait_for_the_others(users, lock, address)
                started.stop()


def _wait_for_the_others(users, lock: Path, address: Path) -> None:
    deadline = time.monotonic() + WHOLE_RUN
    while time.monotonic() < deadline:
        # Under the lock: nobody may come while it is given up.
        with one_at_a_time(lock, "starting Kafka", START):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                address.unlink()
                return
            # A lock that was not had is lost as well.
            fcntl.flock(users, fcntl.LOCK_SH)
        time.sleep(0.2)
