"""Measures how long it takes to read the lag on a large cluster with many brokers and partitions."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from measuring import Contestant, Section, interleaved
from raw import (
    EARLIEST,
    LATEST,
    LIST_OFFSETS,
    OFFSET_FETCH,
    Connection,
    Response,
    list_offsets,
    parse_offsets,
    text_of,
)

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

OURS = "ours, kept"
COLD = "ours, a new client each time"
RAW = "raw protocol, all requests of a question at once"


def measure(brokers: int, topics: int, partitions: int, rounds: int) -> Section:
    """Measure the lag of one group for each topic of a simulated cluster."""
    task = f"{topics} groups of {partitions:,} partitions on {brokers} brokers"
    names = [f"topic-{number:04}" for number in range(topics)]
    wanted = {f"group-{name}": [TopicPartition(name, each) for each in range(partitions)] for name in names}
    everything = [tp for each in wanted.values() for tp in each]
    with _cluster(brokers, topics, partitions) as servers:
        raw = _Raw(servers, brokers)

        def ours(client: OffsetsClient) -> int:
            found = client.committed_groups(wanted)
            logs = client.log_ranges(everything)
            total = 0
            for commits in found.values():
                if isinstance(commits, Exception):
                    raise commits
                total += sum(logs[tp].end - commit.offset for tp, commit in commits.items())
            return total

        def ours_cold() -> int:
            with OffsetsClient({"bootstrap.servers": servers}, timeout=120) as client:
                client.partitions()
                return ours(client)

        with OffsetsClient({"bootstrap.servers": servers}, timeout=120) as client:
            client.partitions()
            times = interleaved(
                [
                    Contestant(task, OURS, lambda: ours(client)),
                    Contestant(task, COLD, ours_cold),
                    Contestant(task, RAW, lambda: raw.lag(wanted)),
                ],
                rounds,
            )
            family = [psutil.Process(), *psutil.Process().children()]
            threads = sum(each.num_threads() for each in family)
    return Section(
        f"A simulated cluster of {brokers} brokers",
        times,
        notes=[
            f"{topics * partitions:,} partitions. The brokers share one process, which answers one request "
            "after another, which limits every client. No disks, replicas, security or quotas are simulated. "
            f"All processes together had {threads} threads: the client library has one for each broker."
        ],
    )


@contextlib.contextmanager
def _cluster(*numbers: int) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("stub_cluster.py")), *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (servers := process.stdout.readline().strip()):
                raise SystemExit("the simulated cluster did not start")
            yield servers
        finally:
            process.kill()


class _Raw:
    """One connection to each broker; uses the stub's fixed leaders and coordinators."""

    def __init__(self, servers: str, brokers: int) -> None:
        first = Connection(servers)
        first.send(3, 4, struct.pack(">ib", 0, 0))
        metadata = Response(first.receive(), 8)
        self._brokers = []
        for _ in range(brokers):
            metadata.take(">i")
            host, (port, _) = metadata.text(), metadata.take(">ih")
            self._brokers.append(Connection(f"{host}:{port}"))

    def lag(self, wanted: dict[str, list[TopicPartition]]) -> int:
        led: list[list[TopicPartition]] = [[] for _ in self._brokers]
        for number, (group_id, partitions) in enumerate(wanted.items()):
            body = text_of(group_id) + struct.pack(">i", 1) + text_of(partitions[0].topic)
            numbers = [tp.partition for tp in partitions]
            body += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
            self._brokers[number % len(self._brokers)].send(OFFSET_FETCH, 5, body)
            for tp in partitions:
                led[tp.partition % len(led)].append(tp)
        committed = sum(
            _committed(self._brokers[number % len(self._brokers)].receive()) for number in range(len(wanted))
        )
        ends = self._offsets(led, LATEST)
        self._offsets(led, EARLIEST)
        return ends - committed

    def _offsets(self, led: list[list[TopicPartition]], timestamp: int) -> int:
        for broker, partitions in zip(self._brokers, led, strict=True):
            broker.send(LIST_OFFSETS, 2, list_offsets(partitions, timestamp))
        return sum(sum(parse_offsets(broker.receive()).values()) for broker in self._brokers)


def _committed(data: bytes) -> int:
    """Return the sum of a group's offsets in one topic."""
    response = Response(data, 8)
    response.text()
    return sum(offset for _, offset, _, _, _ in response.array(">iqihh"))
