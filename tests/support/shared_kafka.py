"""The one Kafka that all tests share, also those that another process runs at the same time."""

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from breakable_kafka import BreakableKafka

from airflow_kafka_offsets.local.cache import lock_file
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

AnyKafka = TypeVar("AnyKafka", bound=EmbeddedKafka)
START = 180.0
WHOLE_RUN = 1800.0
DAY = 86_400_000
PROPERTIES = {
    # Many tests have records with old times in topics with default settings.
    "log.retention.check.interval.ms": str(DAY),
    # By default a compacted topic is compacted every 15 s.
    "log.cleaner.backoff.ms": "200",
}


class SharedKafka(NamedTuple):
    bootstrap_servers: str
    pid: int
    directory: Path


@contextmanager
def shared_kafka(directory: Path) -> Iterator[SharedKafka]:
    """Use the Kafka of this test run, see :func:`shared`."""

    def describe(kafka: BreakableKafka) -> object:
        return SharedKafka(kafka.bootstrap_servers, kafka.pid, kafka.directory)

    make = partial(BreakableKafka, properties=PROPERTIES)
    with shared(directory, "kafka", make, describe) as (servers, pid, home):
        yield SharedKafka(servers, pid, Path(home))


@contextmanager
def shared(
    directory: Path,
    name: str,
    make: Callable[[], AnyKafka],
    describe: Callable[[AnyKafka], object],
) -> Iterator[Any]:
    """
    Use a Kafka that the first process to come here starts, and the last one to leave has left alone.

    :param directory: where the processes of one test run meet.
    :param name: which Kafka.
    :param make: the Kafka to start.
    :param describe: what everybody is told of it, as far as JSON can say it.
    """
    lock, address = directory / f"{name}.lock", directory / f"{name}.json"
    started: AnyKafka | None = None
    # A shared lock for as long as it is used: the kernel lets go of it however a process ends.
    with (directory / f"{name}.users").open("w") as users:
        with lock_file(lock, "starting Kafka", START):
            if not address.exists():
                started = make().start()
                address.write_text(json.dumps(describe(started), default=str))
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield json.loads(address.read_text())
        finally:
            if started is not None:
                _wait_for_the_others(users, lock, address)
                started.stop()


def _wait_for_the_others(users: IO[str], lock: Path, address: Path) -> None:
    deadline = time.monotonic() + WHOLE_RUN
    while time.monotonic() < deadline:
        # Under the lock: nobody may come while it is given up.
        with lock_file(lock, "starting Kafka", START):
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
