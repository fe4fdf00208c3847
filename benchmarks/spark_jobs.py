"""Measures the cost of the listener in a streaming query, and of an exact window in a batch read."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from cluster import RECORDS, Cluster, say
from confluent_kafka import Producer
from measuring import Section, Target, Times

from airflow_kafka_offsets.local.environment import default_spark
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import KafkaOffsetCommitterListener, launcher_path, read_window


class Length(NamedTuple):
    """How long a query runs, and for how many batches there are records."""

    warm: float
    """Seconds at the beginning that do not count, because Java still compiles frequently used code."""
    blocks: int
    """An odd number, so that each block with the listener is between two blocks without it."""
    seconds: float
    """Seconds of each block."""
    batches: int


LENGTHS = {1: Length(20, 25, 5, 2_500), 100: Length(20, 25, 5, 800), 1_000: Length(30, 13, 15, 150)}
SIZES = tuple(LENGTHS)
_SHORT = Length(3, 5, 2, 200)
_EDGE = 0.6
"""Seconds at both ends of a block that do not count, because the listener is added or removed."""
_JOB_PARTITIONS = 50
_JOB = """
import sys
from pyspark.sql import SparkSession
servers, topic, size, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for setting in SETTINGS.items():
    builder = builder.config(*setting)
spark = builder.getOrCreate()
source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
source = source.option("kafka.fetch.max.wait.ms", "1").option("subscribe", topic)
source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", size)
query = source.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
assert query.trigger(availableNow=True).start().awaitTermination(300)
spark.stop()
"""
READS = {1: 10, 100: 6, 1_000: 3}
"""Number of reads by number of partitions; a first read before them does not count."""


class Followed(NamedTuple):
    """Batches of one query, in the blocks without and with the listener."""

    milliseconds: dict[bool, float]
    rates: dict[bool, float]
    """Batches per second."""
    more: float
    """Percentage by which the batches with the listener took longer."""
    error: float
    """The standard error of ``more``, in percent."""


def measure(cluster: Cluster, sizes: tuple[int, ...], rounds: int) -> Section:
    table = [
        "| partitions | batch without listener, ms | with | more | batches per second without | with | "
        "plain read, ms | `read_window` | more |",
        "| ---: " * 9 + "|",
    ]
    targets = []
    with _spark() as spark, tempfile.TemporaryDirectory(prefix="queries-") as directory:
        for size in sizes:
            say(f"a query over {size} partitions")
            topic = _topic(cluster, size)
            found = _query(spark, cluster, topic, size, str(Path(directory) / f"{size}"))
            plain, ours = _reads(spark, cluster, topic, size)
            cells = (
                *(f"{size:,}", *(f"{found.milliseconds[each]:.0f}" for each in (False, True))),
                f"{found.more:+.1f} ± {found.error:.1f} %",
                *(f"{found.rates[each]:.1f}" for each in (False, True)),
                *(f"{1000 * plain:.0f}", f"{1000 * ours:.0f}", f"{100 * (ours / plain - 1):+.0f} %"),
            )
            table.append(f"| {' | '.join(cells)} |")
            say(table[-1])
            if size == 100:
                targets.append(
                    Target(
                        "Listener: of the batch time of 100 partitions",
                        found.more,
                        1,
                        at_least=False,
                        unit="%",
                    )
                )
    if sizes == SIZES:
        table += ["", *_launched(cluster, max(2, rounds // 2))]
    note = (
        "One query for each number of partitions, with the noop sink, that reads a record of each partition "
        "in a batch on a Spark with two threads; the listener is added to it and removed from it in turns, "
        "for some seconds each. Spark's own `triggerExecution`; each block with the listener is compared "
        "with those beside it, and the mean and its standard error are shown. The reads count the rows of "
        "the whole topic. Spark may keep 2,048 consumers (by default it keeps 64)."
    )
    return Section("In Spark", Times({}), targets, [note], table)


@contextlib.contextmanager
def _spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    for name, value in _settings().items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def _settings() -> dict[str, str]:
    return {
        "spark.jars.packages": default_spark(metadata.version("pyspark")).connector,
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # With the default of 64, Spark connects again for each partition of each batch.
        "spark.kafka.consumer.cache.capacity": "2048",
        "spark.pyspark.python": sys.executable,
    }


def _launched(cluster: Cluster, rounds: int) -> list[str]:
    """Return a table of a job as a whole process, without and with the launcher."""
    topic = cluster.topic(_JOB_PARTITIONS)
    job = cluster.directory / "job.py"
    job.write_text(_JOB.replace("SETTINGS", repr(_settings())))
    launcher = [launcher_path(), "--group-id", cluster.name("launched-group"), "--allow-new-query"]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for launched in (False, True) if number % 2 else (True, False):
            say(f"a job {'with' if launched else 'without'} the launcher")
            checkpoint = str(cluster.directory / f"launched-{number}-{launched}")
            command = [*(launcher if launched else ()), str(job), cluster.servers, topic]
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, *command, str(_JOB_PARTITIONS), checkpoint],
                check=True,
                capture_output=True,
                timeout=300,
            )
            seconds[launched].append(time.perf_counter() - began)
    without, launched_s = (statistics.median(seconds[launched]) for launched in (False, True))
    return [
        f"| a process of {RECORDS} batches of {_JOB_PARTITIONS} partitions | with the launcher | more |",
        "| ---: | ---: | ---: |",
        f"| {without:.1f} s | {launched_s:.1f} s | {launched_s - without:+.1f} s |",
    ]


def _topic(cluster: Cluster, size: int) -> str:
    """Return a topic with enough records for the batches."""
    topic = cluster.topic(size)
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 50, "log_level": 0})
    for number in range(LENGTHS.get(size, _SHORT).batches * size):
        producer.produce(topic, b"x", partition=number % size)
        producer.poll(0)
    producer.flush(60)
    return topic


def _query(spark: Any, cluster: Cluster, topic: str, size: int, checkpoint: str) -> Followed:
    """Run a query with the listener in every second block."""
    length = LENGTHS.get(size, _SHORT)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", length.batches)
    source = spark.readStream.format("kafka").options(**_options(cluster.servers))
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    # Spark takes at least one record of each partition in a batch.
    records = source.option("maxOffsetsPerTrigger", size).load()
    listener = KafkaOffsetCommitterListener(spark, group_id=cluster.name(f"query-{size}"))
    running = records.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    time.sleep(length.warm)
    blocks: list[tuple[float, float]] = []
    for number in range(length.blocks):
        if number % 2:
            spark.streams.addListener(listener)
        began = time.time()
        time.sleep(length.seconds)
        blocks.append((began + _EDGE, time.time() - _EDGE))
        if number % 2:
            spark.streams.removeListener(listener)
    progress = [json.loads(each.json) for each in running.recentProgress]
    running.stop()
    listener.stop()
    if not listener.counts.committed or listener.errors:
        raise SystemExit(f"the listener committed {listener.counts}: {listener.errors}")
    return _compared(blocks, [each for each in progress if each["numInputRows"]])


def _compared(blocks: Sequence[tuple[float, float]], progress: Sequence[Mapping[str, Any]]) -> Followed:
    durations: list[list[float]] = [[] for _ in blocks]
    begun = [0] * len(blocks)
    for each in progress:
        began = datetime.fromisoformat(each["timestamp"].replace("Z", "+00:00")).timestamp()
        took = each["durationMs"]["triggerExecution"]
        for number, (start, end) in enumerate(blocks):
            begun[number] += start <= began < end
            if start <= began and began + took / 1000 <= end:
                durations[number].append(took)
    if not all(durations):
        raise SystemExit("the query ended, or ran out of records, before all blocks were over: see LENGTHS")
    means = [statistics.mean(found) for found in durations]
    more = [
        100 * (means[number] / statistics.mean(means[number - 1 : number + 2 : 2]) - 1)
        for number in range(1, len(blocks), 2)
    ]
    each_kind = {followed: slice(int(followed), None, 2) for followed in (False, True)}
    return Followed(
        {followed: statistics.mean(means[those]) for followed, those in each_kind.items()},
        {
            followed: sum(begun[those]) / sum(end - start for start, end in blocks[those])
            for followed, those in each_kind.items()
        },
        statistics.mean(more),
        statistics.stdev(more) / len(more) ** 0.5,
    )


def _options(servers: str) -> dict[str, str]:
    # At the end of a log the broker would let each consumer wait half a second for more.
    return {"kafka.bootstrap.servers": servers, "kafka.fetch.max.wait.ms": "1"}


def _reads(spark: Any, cluster: Cluster, topic: str, size: int) -> tuple[float, float]:
    """Return the median seconds of a plain read of a range, and of the same range as a window."""
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
