"""Measures how long it takes to read the lag on a large cluster with many brokers and partitions."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from measuring import Contestant, Section, interleaved
from raw import EARLIEST, LATEST
from stub_cluster import LOOPBACK, text_of

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

OURS = "ours, kept"
COLD = "ours, a new client each time"
RAW = "raw protocol, all requests of a question at once"
LAG = 2


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
        first = self._connect(int(servers.rpartition(":")[2]))
        body = first.ask([(3, 4, struct.pack(">ib", 0, 0))])[0]
        at = 8
        ports = []
        for _ in range(brokers):
            at += 4 + 2 + len(LOOPBACK)
            ports.append(struct.unpack_from(">i", body, at)[0])
            at += 6
        self._brokers = [self._connect(port) for port in ports]

    def lag(self, wanted: dict[str, list[TopicPartition]]) -> int:
        fetches: list[list[tuple[int, int, bytes]]] = [[] for _ in self._brokers]
        lists: list[dict[str, list[int]]] = [{} for _ in self._brokers]
        for number, (group_id, partitions) in enumerate(wanted.items()):
            topic = partitions[0].topic
            body = text_of(group_id) + struct.pack(">i", 1) + text_of(topic)
            numbers = [tp.partition for tp in partitions]
            body += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
            fetches[number % len(fetches)].append((9, 5, body))
            for tp in partitions:
                lists[tp.partition % len(lists)].setdefault(topic, []).append(tp.partition)
        committed = sum(sum(_commits(body)) for body in self._each(fetches))
        ends = self._each([[(2, 2, _list(topics, LATEST))] for topics in lists])
        starts = self._each([[(2, 2, _list(topics, EARLIEST))] for topics in lists])
        for body in starts:
            sum(_offsets(body))
        return sum(sum(_offsets(body)) for body in ends) - committed

    def _each(self, requests: list[list[tuple[int, int, bytes]]]) -> list[bytes]:
        for broker, each in zip(self._brokers, requests, strict=True):
            broker.send(each)
        return [broker.receive() for broker, each in zip(self._brokers, requests, strict=True) for _ in each]

    @staticmethod
    def _connect(port: int) -> _Connection:
        return _Connection(port)


class _Connection:
    def __init__(self, port: int) -> None:
        end = time.monotonic() + 10
        while True:
            with contextlib.suppress(ConnectionError):
                self._socket = socket.create_connection((LOOPBACK, port), timeout=120)
                return
            if time.monotonic() > end:
                raise SystemExit(f"no connection to port {port}")

    def ask(self, requests: list[tuple[int, int, bytes]]) -> list[bytes]:
        self.send(requests)
        return [self.receive() for _ in requests]

    def send(self, requests: list[tuple[int, int, bytes]]) -> None:
        for key, version, body in requests:
            request = struct.pack(">hhih", key, version, 0, -1) + body
            self._socket.sendall(struct.pack(">i", len(request)) + request)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)[4:]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise ConnectionError("the stub closed the connection")
            data += more
        return bytes(data)


def _list(topics: dict[str, list[int]], timestamp: int) -> bytes:
    body = bytearray(struct.pack(">ibi", -1, 0, len(topics)))
    for topic, numbers in topics.items():
        body += text_of(topic) + struct.pack(">i", len(numbers))
        body += b"".join(struct.pack(">iq", number, timestamp) for number in numbers)
    return bytes(body)


def _offsets(body: bytes) -> Iterator[int]:
    at = 4
    (topics,) = struct.unpack_from(">i", body, at)
    at += 4
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", body, at)
        (count,) = struct.unpack_from(">i", body, at + 2 + size)
        at += 6 + size
        for _, _, _, offset in struct.iter_unpack(">ihqq", body[at : at + 22 * count]):
            yield offset
        at += 22 * count


def _commits(body: bytes) -> Iterator[int]:
    at = 8
    (size,) = struct.unpack_from(">h", body, at)
    (count,) = struct.unpack_from(">i", body, at + 2 + size)
    at += 6 + size
    for _, offset, _, _, _ in struct.iter_unpack(">iqihh", body[at : at + 20 * count]):
        yield offset
