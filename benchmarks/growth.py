"""Measures the cost of one poll of many pipelines, and how it grows."""

from __future__ import annotations

import statistics
import time

import psutil
from cluster import Cluster, say
from groups import total_lag
from measuring import Section, Times
from raw import RawClient

from airflow_kafka_offsets.model.offsets import TopicPartition

PIPELINES = (1, 100, 1_000, 10_000)
PARTITIONS = 20
TOPICS = 50
"""Number of topics that the pipelines share: a broker on loopback cannot hold 10,000 topics."""
POLLS = 5


def measure(cluster: Cluster, sizes: tuple[int, ...] = PIPELINES) -> list[Section]:
    """Poll through a process that counts requests; skipped if the broker was given by the user."""
    if not cluster.ways:
        return []
    way = cluster.ways[0]
    topic = cluster.topic(TOPICS * PARTITIONS)
    raw = RawClient(cluster.servers)
    table = [
        "| pipelines | requests: coordinators | commits | logs | KB to the broker | KB back | ms | "
        "ms of this process | ms of the admin process | threads more | MB more |",
        "| ---: " * 11 + "|",
    ]
    for size in sizes:
        say(f"{size} pipelines")
        wanted = {}
        for number in range(size):
            first = number % TOPICS * PARTITIONS
            wanted[cluster.name(f"growth-{size}-{number}")] = [
                TopicPartition(topic, each) for each in range(first, first + PARTITIONS)
            ]
        for name, partitions in wanted.items():
            raw.commit(name, dict.fromkeys(partitions, 1))
        everything = sorted({tp for partitions in wanted.values() for tp in partitions})

        before, threads_before = _memory(), _threads()
        with cluster.client(way.servers) as client:
            total_lag(client, wanted, everything)
            way.passed()
            times, own, admin = [], _seconds(own=True), _seconds(own=False)
            for _ in range(POLLS):
                began = time.perf_counter()
                total_lag(client, wanted, everything)
                times.append(time.perf_counter() - began)
            passed = way.passed()
            own, admin = _seconds(own=True) - own, _seconds(own=False) - admin
            threads = _threads() - threads_before
            memory = _memory() - before
        requests = (
            passed.get("FindCoordinator", 0),
            passed.get("OffsetFetch", 0),
            passed.get("ListOffsets", 0) + passed.get("Metadata", 0),
        )
        cells = (
            f"{size:,}",
            *(f"{number / POLLS:,.0f}" for number in requests),
            *(f"{passed[bound] / POLLS / 1000:,.0f}" for bound in ("to", "from")),
            *(f"{1000 * seconds:,.0f}" for seconds in (statistics.median(times), own / POLLS, admin / POLLS)),
            str(threads),
            f"{memory / 1e6:.0f}",
        )
        table.append(f"| {' | '.join(cells)} |")
    note = (
        f"One poll of all of them: commits, log starts and log ends of {PARTITIONS} partitions each, of "
        f"{TOPICS} sets of partitions in all. Average of {POLLS} polls of a kept client, through a process "
        "that counts. The milliseconds of the processes are processor time."
    )
    return [Section("What many pipelines cost", Times({}), [], [note], table)]


def _family() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *(child for child in own.children() if "admin_worker" in " ".join(child.cmdline()))]


def _seconds(*, own: bool) -> float:
    me, *workers = _family()
    return sum(sum(each.cpu_times()[:2]) for each in ([me] if own else workers))


def _memory() -> int:
    return sum(int(each.memory_full_info().pss) for each in _family())


def _threads() -> int:
    return sum(each.num_threads() for each in _family())
