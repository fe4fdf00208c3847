"""What does the listener cost a streaming query, and an exact window a batch read?"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from cluster import Cluster, say
from confluent_kafka import Producer
from measuring import Section, Target, Times

from airflow_kafka_offsets.local.environment import default_spark
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import committing, read_window

BATCHES = {1: 40, 100: 40, 1_000: 6}
"""Batches of a query, by its partitions: each batch has a task for each of them."""
SIZES = tuple(BATCHES)
_FEW_BATCHES = 5
READS = {1: 10, 100: 6, 1_000: 3}
"""Reads by partitions; before them comes one that does not count."""


def measure(cluster: Cluster, sizes: tuple[int, ...], rounds: int) -> Section:
    table = [
        "| partitions | batch without listener, ms | with | more | batches per second without | with | "
        "plain read, ms | `read_window` | more |",
        "| ---: " * 9 + "|",
    ]
    targets = []
    with _spark() as spark, tempfile.TemporaryDirectory(prefix="queries-") as directory:
        for size in sizes:
            say(f"queries over {size} partitions")
            topic = _topic(cluster, size)
            checkpoints = (str(Path(directory) / f"{size}-{number}") for number in range(10_000))
            durations: dict[bool, list[float]] = {False: [], True: []}
            rates: dict[bool, list[float]] = {False: [], True: []}
            for number in range(max(2, rounds // 2)):
                for followed in (False, True) if number % 2 else (True, False):
                    group_id = cluster.name(f"query-{size}-{number}") if followed else None
                    each, rate = _query(spark, cluster.servers, topic, size, next(checkpoints), group_id)
                    durations[followed] += each
                    rates[followed].append(rate)
            plain, ours = _reads(spark, cluster, topic, size)
            without, followed_ms = statistics.median(durations[False]), statistics.median(durations[True])
            more = 100 * (followed_ms / without - 1)
            cells = (
                *(f"{size:,}", f"{without:.0f}", f"{followed_ms:.0f}", f"{more:+.1f} %"),
                *(f"{statistics.median(rates[each]):.1f}" for each in (False, True)),
                *(f"{1000 * plain:.0f}", f"{1000 * ours:.0f}", f"{100 * (ours / plain - 1):+.0f} %"),
            )
            table.append(f"| {' | '.join(cells)} |")
            say(table[-1])
            if size == 100:
                targets.append(
                    Target("Listener: of the batch time of 100 partitions", more, 1, at_least=False, unit="%")
                )
    note = (
        "Queries with the noop sink that read a record of each partition in a batch, in turns on one Spark "
        "with two threads; Spark's own `triggerExecution`, median of all batches but the first quarter of a "
        "query. The reads count the rows of the whole topic. Spark may "
        "keep 2,048 consumers (by default it keeps 64)."
    )
    return Section("In Spark", Times({}), targets, [note], table)


@contextlib.contextmanager
def _spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    settings = {
        "spark.jars.packages": default_spark(metadata.version("pyspark")).connector,
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Its default of 64 makes Spark connect anew for each partition of each batch.
        "spark.kafka.consumer.cache.capacity": "2048",
        "spark.pyspark.python": sys.executable,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def _topic(cluster: Cluster, size: int) -> str:
    """Return a topic with enough records for the batches."""
    topic = cluster.topic(size)
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 50, "log_level": 0})
    for number in range(_batches(size) * size):
        producer.produce(topic, b"x", partition=number % size)
        producer.poll(0)
    producer.flush(60)
    return topic


def _query(
    spark: Any, servers: str, topic: str, size: int, checkpoint: str, group_id: str | None
) -> tuple[list[float], float]:
    """Run a query of some batches; return the milliseconds of each, and how many it did in a second."""
    source = spark.readStream.format("kafka").options(**_options(servers))
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    # Spark takes at least one record of each partition in a batch.
    records = source.option("maxOffsetsPerTrigger", size).load()
    follows: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if group_id is not None:
        follows = committing(spark, group_id=group_id, allow_new_query=True)
    with follows:
        began = time.perf_counter()
        query = records.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        if not running.awaitTermination(300):
            raise SystemExit("the query did not end")
        seconds = time.perf_counter() - began
    progress = [json.loads(each.json) for each in running.recentProgress]
    durations = [each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"]]
    # The first ones do not count: Java compiles what it runs often.
    return durations[len(durations) // 4 :], len(durations) / seconds


def _options(servers: str) -> dict[str, str]:
    # At the end of a log the broker would let each consumer wait half a second for more.
    return {"kafka.bootstrap.servers": servers, "kafka.fetch.max.wait.ms": "1"}


def _batches(size: int) -> int:
    return BATCHES.get(size, _FEW_BATCHES)


def _reads(spark: Any, cluster: Cluster, topic: str, size: int) -> tuple[float, float]:
    """Return the median seconds of a plain read of a range, and of the same as a window."""
    partitions = [TopicPartition(topic, number) for number in range(size)]
    with cluster.client() as client:
        ends = {tp: log.end for tp, log in client.log_ranges(partitions).items()}
    window = OffsetWindow({tp: OffsetRange(0, end) for tp, end in ends.items()})
    options = _options(cluster.servers)
    ranges = {
        "startingOffsets": json.dumps({topic: {str(number): 0 for number in range(size)}}),
        "endingOffsets": json.dumps({topic: {str(tp.partition): end for tp, end in ends.items()}}),
    }

    def plain() -> int:
        return int(spark.read.format("kafka").options(**options, **ranges, subscribe=topic).load().count())

    def ours() -> int:
        return int(read_window(spark, window, options).count())

    seconds: dict[Callable[[], int], list[float]] = {plain: [], ours: []}
    reads = READS.get(size, 2)
    for number in range(-1, reads):
        counts = set()
        for read, times in seconds.items():
            began = time.perf_counter()
            counts.add(read())
            if number >= 0:
                times.append(time.perf_counter() - began)
        if len(counts) != 1:
            raise SystemExit(f"the reads differ: {counts}")
    return statistics.median(seconds[plain]), statistics.median(seconds[ours])
