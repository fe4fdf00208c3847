"""
Run many pipelines beside a producer that writes as fast as it can, and check that nothing is lost.

From the development environment::

    python tests/soak/scale.py --minutes 10

One broker has 20 topics of 100 partitions. Of 50 groups 48 follow one topic and two follow all of them; every
fourth moves by planned windows, every second of those fenced, and the others follow a checkpoint in Spark's
format, which this script writes. After every fifth move a pipeline is reset to the log start and put back by
the receipt. The operators run in threads of this process, with a client each, as tasks do. The exit status is
1 if a record was lost or read twice, or if anything has drifted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import click  # noqa: E402
from confluent_kafka import Producer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

CONNECTION = "AIRFLOW_CONN_KAFKA_DEFAULT"
BURST = 500
"""Records that go to one partition at once."""

MANY_PARTITIONS = {
    # An index is laid out in its full size, 10 MB, and there are two of them for each partition.
    "log.index.size.max.bytes": "4096",
    "log.retention.ms": "-1",
    "log.cleaner.enable": "false",
}


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--topics", type=int, default=20, show_default=True)
@click.option("--partitions", type=int, default=100, show_default=True, help="Of each topic.")
@click.option("--groups", type=int, default=50, show_default=True)
@click.option("--rate", type=int, default=0, help="Records per second. Default: as many as it can write.")
@click.option("--workers", type=int, default=4, show_default=True, help="Tasks at once.")
def main(minutes: float, topics: int, partitions: int, groups: int, rate: int, workers: int) -> None:
    """Run many pipelines beside a producer."""
    from tests.soak.many_pipelines import ManyPipelines

    with tempfile.TemporaryDirectory(prefix="scale-", ignore_cleanup_errors=True) as home:
        names = [f"scale-{number:02}" for number in range(topics)]
        with broker(names, partitions) as servers:
            os.environ[CONNECTION] = json.dumps(
                {"conn_type": "kafka", "extra": {"bootstrap.servers": servers}}
            )
            running = ManyPipelines(servers, Path(home), names, groups, workers)
            with producing(servers, names, partitions, rate):
                running.run(minutes * 60)
            broken = running.finish()
    for line in broken:
        click.echo(f"BROKEN: {line}")
    if broken:
        raise SystemExit(1)


@contextmanager
def broker(topics: list[str], partitions: int) -> Iterator[str]:
    """Start a broker with the topics, and return its address."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from airflow_kafka_offsets.local.kafka import EmbeddedKafka

    with EmbeddedKafka(heap="2g", properties=MANY_PARTITIONS) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, partitions, 1) for name in topics]).values():
            made.result(60)
        yield kafka.bootstrap_servers


@contextmanager
def producing(servers: str, topics: list[str], partitions: int, rate: int) -> Iterator[None]:
    """Write records in another process."""
    spawn = multiprocessing.get_context("spawn")
    over = spawn.Event()
    process = spawn.Process(target=write, args=(servers, topics, partitions, rate, over), daemon=True)
    process.start()
    try:
        yield
    finally:
        over.set()
        process.join(120)


def write(servers: str, topics: list[str], partitions: int, rate: int, over: Event) -> None:
    """Write bursts of records to one partition after the other, until it is over."""
    # The tasks beside it come first.
    os.nice(5)
    settings = {"enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4", "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **settings})
    began, count = time.monotonic(), 0
    while not over.is_set():
        topic, partition = random.choice(topics), random.randrange(partitions)
        for number in range(BURST):
            while True:
                try:
                    producer.produce(topic, b"%d" % number, partition=partition)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        count += BURST
        producer.poll(0)
        if rate and (ahead := count / rate - (time.monotonic() - began)) > 0:
            time.sleep(ahead)
    producer.flush(60)


if __name__ == "__main__":
    # Airflow reads it once when it is imported.
    with tempfile.TemporaryDirectory(prefix="airflow-home-", ignore_cleanup_errors=True) as airflow_home:
        os.environ |= {"AIRFLOW_HOME": airflow_home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        main()
