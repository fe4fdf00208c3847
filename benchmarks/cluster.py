"""The broker, topics and groups of the measurements."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.jars import tools_classpath
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS, java_command
from airflow_kafka_offsets.model.offsets import TopicPartition

RECORDS = 3
"""Number of records in each partition."""

MANY_PARTITIONS = {
    # Kafka allocates each index with its full size, 10 MB, and each partition has two indexes.
    "log.index.size.max.bytes": "4096",
    # Otherwise retention would roll a segment of each partition, and the broker would run out of files.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.cleaner.enable": "false",
}
DELAYS = (0, 2, 20)
"""Additional milliseconds of a round trip: none, to another zone of a region, and to another region."""
_AT_ONCE = 5_000
"""The controller accepts 10,000 records in one request, and each partition is one record."""
_DEADLINE = 300.0
_LOG4J = "status = off\nrootLogger.level = off\n"


class Cluster:
    """
    A broker with topics, groups and clients for the measurements.

    :param servers: ``host:port``.
    :param directory: directory for files.
    :param ways: connections to the same broker with a delay.
    """

    def __init__(self, servers: str, directory: Path, ways: Sequence[Way] = ()) -> None:
        self.servers = servers
        self.directory = directory
        self.ways = ways
        self._prefix = f"b{int(time.time()) % 100_000}"
        self._topics: dict[int, str] = {}

    def client(self, servers: str | None = None, **options: Any) -> OffsetsClient:
        return OffsetsClient({"bootstrap.servers": servers or self.servers}, timeout=120, **options)

    def name(self, text: str) -> str:
        """Return a name that no earlier run on this broker has used."""
        return f"{self._prefix}-{text}"

    def topic(self, partitions: int) -> str:
        """Return a topic with a number of partitions, with :data:`RECORDS` records in each."""
        if partitions not in self._topics:
            name = self.name(str(partitions))
            say(f"making topic {name}")
            self.create(name, partitions)
            self._fill(name, partitions)
            self._topics[partitions] = name
        return self._topics[partitions]

    def partitions(self, partitions: int) -> list[TopicPartition]:
        topic = self.topic(partitions)
        return [TopicPartition(topic, number) for number in range(partitions)]

    def kafka_tool(self, *arguments: str) -> str:
        """Run ``kafka-consumer-groups`` in a separate process, and return its output."""
        command = [*self._java, CONSUMER_GROUPS, "--bootstrap-server", self.servers, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE)
        if done.returncode or "Error: " in done.stdout + done.stderr:
            raise ToolError((done.stdout + done.stderr).strip()[:500])
        return done.stdout

    def our_tool(self, *arguments: str) -> str:
        """Run ``airflow-kafka-offsets`` in a separate process, and return its output."""
        program = "from airflow_kafka_offsets.cli import main; main()"
        command = [sys.executable, "-c", program, *arguments, "--bootstrap-server", self.servers]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE,
        )
        if done.returncode:
            raise ToolError(done.stderr.strip()[:500])
        return done.stdout

    @cached_property
    def _java(self) -> Sequence[str]:
        """The flags with which Kafka's tool starts fastest; its shell script does not set them."""
        log4j = self.directory / "log4j2.properties"
        log4j.write_text(_LOG4J)
        return java_command(tools_classpath(), "-Xmx256m", f"-Dlog4j2.configurationFile={log4j}")

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, and wait until it can be read."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        first = min(partitions, _AT_ONCE)
        admin.create_topics([NewTopic(name, first, 1)], request_timeout=_DEADLINE)[name].result(_DEADLINE)
        for more in range(first + _AT_ONCE, partitions + _AT_ONCE, _AT_ONCE):
            total = min(more, partitions)
            if total > first:
                grown = admin.create_partitions([NewPartitions(name, total)], request_timeout=_DEADLINE)
                grown[name].result(_DEADLINE)
        wanted = [TopicPartition(name, number) for number in range(partitions)]
        end = time.monotonic() + _DEADLINE
        with self.client() as client:
            while True:
                with contextlib.suppress(KafkaOffsetsError):
                    if len(client.log_ranges(wanted)) == partitions:
                        return
                if time.monotonic() > end:
                    raise SystemExit(f"topic {name} cannot be read within {_DEADLINE:.0f} s")
                time.sleep(0.5)

    def _fill(self, name: str, partitions: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 200, "log_level": 0})
        for number in range(partitions):
            for record in range(RECORDS):
                producer.produce(name, b"%d" % record, partition=number)
            producer.poll(0)
        if producer.flush(_DEADLINE):
            raise SystemExit(f"topic {name}: records were not acknowledged within {_DEADLINE:.0f} s")


class ToolError(Exception):
    """A tool refused or failed."""


@contextlib.contextmanager
def cluster(servers: str | None) -> Iterator[Cluster]:
    """Use the given broker, or start a broker for the measurements."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True) as directory:
        # For admin processes.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(directory) / "compiled")
        if servers:
            yield Cluster(servers, Path(directory))
            return
        say("starting Kafka")
        port, controller = free_port(), free_port()
        ways = [Way(delay) for delay in DELAYS]
        listeners = {"PLAINTEXT": (port, port)} | {way.name: (way.port, way.proxy) for way in ways}
        properties = {
            **MANY_PARTITIONS,
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "listeners": _addresses(
                {name: at for name, (at, _) in listeners.items()} | {"CONTROLLER": controller}
            ),
            "advertised.listeners": _addresses({name: proxy for name, (_, proxy) in listeners.items()}),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in [*listeners, "CONTROLLER"]
            ),
        }
        with (
            EmbeddedKafka(port=port, heap="2g", properties=properties) as kafka,
            contextlib.ExitStack() as stack,
        ):
            for way in ways:
                stack.enter_context(way.open())
            yield Cluster(kafka.bootstrap_servers, Path(directory), ways)


class Way:
    """
    A delayed connection to the broker: a separate listener, and a process that delays and counts responses.

    :param delay: additional milliseconds of a round trip.
    """

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.name = f"WAY{delay}"
        self.port, self.proxy = free_port(), free_port()
        self.servers = f"{LOOPBACK}:{self.proxy}"
        self._process: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        command = [sys.executable, str(Path(__file__).with_name("delay.py"))]
        numbers = [str(self.proxy), str(self.port), str(self.delay)]
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, *numbers], stdin=pipe, stdout=pipe, text=True) as self._process:
            try:
                if self._read() != "ready":
                    raise SystemExit(f"the way of {self.delay} ms more could not be opened")
                yield
            finally:
                self._process.kill()

    def passed(self) -> dict[str, int]:
        """Return the requests by API, and bytes ``to`` and ``from`` the broker, since the last call."""
        if self._process is None or self._process.stdin is None:
            raise SystemExit("the way is not open")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._read())
        return found

    def _read(self) -> str:
        return (
            ""
            if self._process is None or self._process.stdout is None
            else self._process.stdout.readline().strip()
        )


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def say(line: str) -> None:
    """Print progress on standard error."""
    print(line, file=sys.stderr, flush=True)
