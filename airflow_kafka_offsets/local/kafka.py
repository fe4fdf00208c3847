"""A real Apache Kafka of one or more brokers on this machine."""

from __future__ import annotations

import locale
import logging
import secrets
import shlex
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.errors import BrokerError, SetupError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.failures import Deadline
from airflow_kafka_offsets.local import broker_config
from airflow_kafka_offsets.local.broker import Broker, broker_command, find_brokers
from airflow_kafka_offsets.local.broker_config import CONTROLLER, LOOPBACK, free_port, is_free
from airflow_kafka_offsets.local.process import end_processes, log_tail
from airflow_kafka_offsets.local.tools import run_tool
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import unexpected
from airflow_kafka_offsets.moves.write import commit_offsets, delete_groups

log = logging.getLogger(__name__)

READY_TIMEOUT = 120.0
"""Seconds from the start of the process to the first commit; usually about 5."""

_ATTEMPT = 5.0
"""Seconds of one attempt: a new broker may never answer the first commit, but a second client's."""

_READY = "airflow-kafka-offsets-ready"
# Another program may take a port between the search for a free one and the broker's start.
_PORT_ATTEMPTS = 3
_PLAIN = {"PLAINTEXT": "PLAINTEXT"}


class EmbeddedKafka:
    """
    A real Apache Kafka: KRaft nodes in Java processes, reachable from this machine only.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. The brokers end with this process,
    even after SIGKILL, unless :meth:`leave_running` was called. Ctrl-C does not reach the brokers.

    :param directory: for configuration, log and data, which :meth:`stop` keeps. Default: a temporary
        directory, which :meth:`stop` removes.
    :param brokers: number of brokers; each broker is also a controller. From three on, topics have three
        replicas by default, and one broker may fail.
    :param port: port of the first broker's first listener; the other brokers get the next ports. Default: the
        ports of the last start if they are free, else free ports.
    :param listeners: name -> security protocol. Brokers communicate on the first listener, which is also the
        one in :attr:`bootstrap_servers`. Default: one, PLAINTEXT.
    :param properties: broker properties that are added to, or replace, the default ones.
    :param heap: Java heap of a broker, as in ``-Xmx``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        brokers: int = 1,
        port: int | None = None,
        listeners: Mapping[str, str] = _PLAIN,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
    ) -> None:
        last = broker_config.LAST_PORT + 1 - brokers
        if port is not None and not 1 <= port <= last:
            expected = f"1 to {last}, with a port for each of {brokers} brokers"
            raise unexpected("port", port, expected)
        self._temporary = directory is None
        temporary = Path(tempfile.gettempdir(), f"airflow-kafka-offsets-{secrets.token_hex(8)}")
        # Brokers are found by this path: it must be the same through every link.
        self.directory = (directory or temporary).resolve()
        path, known = str(self.directory), locale.nl_langinfo(locale.CODESET) or "UTF-8"
        if "," in path or path.encode(known, "replace").decode(known) != path:
            java = f"only with characters of {known}, the locale's encoding, which Java uses (see LC_ALL)"
            raise unexpected("directory", path, f"a path without a comma, which Kafka splits, and {java}")
        self.brokers = {number: Broker(self.directory, number) for number in range(1, brokers + 1)}
        self._given_port = port
        self._ports: list[dict[str, int]] = []
        self._cluster_id = ""
        self._first = next(iter(listeners))
        self._protocols = dict(listeners)
        self._protocols.setdefault(CONTROLLER, "PLAINTEXT")
        self._properties = dict(properties or {})
        self._heap = heap

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of each broker's first listener, separated by commas, after the start."""
        return self.servers(self._first)

    def servers(self, listener: str) -> str:
        """Return ``host:port`` of each broker's listener with this name, separated by commas."""
        return ",".join(f"{LOOPBACK}:{ports[listener]}" for ports in self._ports)

    @property
    def pid(self) -> int:
        """Process id of the first broker."""
        return self.brokers[1].process.pid

    @property
    def running(self) -> bool:
        """Whether all brokers were started and none has ended."""
        return all(broker.running for broker in self.brokers.values())

    def start(self) -> Self:
        """
        Start the brokers unless all run, and wait until each accepts records and commits.

        :raises SetupError: if a broker does not start; contains the end of its log. If only some brokers run,
            or another process started them; these continue.
        """
        # Before the attempts, each of which stops its brokers when it fails.
        if not self.running and (there := find_brokers(self.directory)):
            pids = ", ".join(str(broker.pid) for broker in there)
            stop = f"airflow-kafka-offsets kafka stop --directory {shlex.quote(str(self.directory))}"
            raise SetupError(
                f"a Kafka runs in {self.directory} already (pid {pids}), expected none: stop it ({stop}), or "
                "name another directory"
            )
        for attempt in range(_PORT_ATTEMPTS):
            if self.running:
                break
            try:
                self._start()
            except BaseException as error:
                self.stop()
                # Another program has taken the port first.
                taken = self._given_port is None and "Address already in use" in str(error)
                if not taken or attempt == _PORT_ATTEMPTS - 1:
                    raise
        return self

    def stop(self) -> None:
        """Stop all brokers, with SIGKILL if that takes too long; remove a temporary directory."""
        running = [broker for broker in self.brokers.values() if broker.running]
        if self._temporary:
            for broker in running:
                # Its data is removed next, so no clean shutdown is needed.
                broker.signal(signal.SIGKILL)
        else:
            own = {broker.process.pid for broker in running}
            end_processes([process for process in find_brokers(self.directory) if process.pid in own])
        for broker in self.brokers.values():
            broker.end()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def leave_running(self) -> None:
        """Let the brokers outlive this process."""
        for broker in self.brokers.values():
            broker.leave_running()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client_config(self) -> dict[str, Any]:
        """Return the configuration of a client with all rights."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def wait_until_ready(self) -> None:
        """
        Wait until every started broker listens and has joined, and a commit, which is a record, is accepted.

        :raises SetupError: if a broker ends, or this takes longer than :data:`READY_TIMEOUT`.
        """
        started = [broker for broker in self.brokers.values() if broker.started]
        deadline, failure = Deadline(READY_TIMEOUT), "there was no time"
        while deadline.seconds_left:
            for broker in started:
                if not broker.running:
                    status = f"status {broker.process.status}"
                    raise SetupError(f"Kafka ended with {status} before it was ready{self._log_tail(broker)}")
            try:
                for broker in started:
                    # librdkafka would wait longer and longer between its attempts to connect.
                    port = self._ports[broker.number - 1][self._first]
                    socket.create_connection((LOOPBACK, port), timeout=1).close()
                # A new client for each attempt: one that asked too early may fail for a long time.
                config = {**self.client_config(), "log_level": 0}
                # Another program may listen on a broker's port, even another Kafka.
                cluster = AdminClient(config).list_topics("__consumer_offsets", timeout=_ATTEMPT)
                if cluster.cluster_id != self._cluster_id:
                    raise ConnectionError(f"its cluster is {cluster.cluster_id}, expected {self._cluster_id}")
                if missing := [broker.number for broker in started if broker.number not in cluster.brokers]:
                    raise ConnectionError(f"brokers {missing} have not joined the cluster")
                with OffsetsClient(config, timeout=_ATTEMPT) as client:
                    commit_offsets(client, _READY, {TopicPartition("__consumer_offsets", 0): 0}, "")
                    delete_groups(client, {_READY: {}}, save=lambda _: None)
            except (OSError, BrokerError, KafkaException) as error:
                failure = str(error)
                time.sleep(0.05)
            else:
                return
        raise SetupError(
            f"Kafka did not get ready: {self.bootstrap_servers} accepted no commit within "
            f"{READY_TIMEOUT:.0f} s ({failure}){self._log_tail(started[0])}"
        )

    def server_properties(self, number: int) -> dict[str, str]:
        """Return the configuration of a broker; its ports must be chosen before."""
        data = self.brokers[number].data
        found = broker_config.server_properties(number, self._ports, self._protocols, data)
        return found | self._properties

    def _start(self) -> None:
        there = len(list(self.directory.glob("broker-*/server.properties")))
        if there not in (0, len(self.brokers)):
            raise SetupError(
                f"{self.directory} has a Kafka of {plural(there, 'broker')}, expected "
                f"{len(self.brokers)}: start it with the same number, or name another directory"
            )
        self._choose_ports()
        for number, broker in self.brokers.items():
            broker.configure(self.server_properties(number))
        command = broker_command(self.directory, self._heap)
        self._format()
        log.info("starting Kafka on %s", self.bootstrap_servers)
        for broker in self.brokers.values():
            broker.start(command)
        self.wait_until_ready()
        log.info("Kafka is ready on %s", self.bootstrap_servers)

    def _choose_ports(self) -> None:
        """Keep the ports of the last start unless another program listens there."""
        self._ports = []
        taken = {self._given_port + number - 1 for number in self.brokers} if self._given_port else set()
        for number, broker in self.brokers.items():
            last = broker_config.listener_ports(broker.configuration)
            ports = {}
            for name in self._protocols:
                port = self._given_port and self._given_port + number - 1 if name == self._first else None
                if port and not is_free(port):
                    raise SetupError(
                        f"port {port} on {LOOPBACK} is taken, expected a free one for Kafka: stop the "
                        "program that listens there, or choose another port (by default a free one is found)"
                    )
                kept = last.get(name)
                if kept in taken or not (kept and is_free(kept)):
                    kept = None
                ports[name] = port or kept or free_port(taken)
                taken.add(ports[name])
            self._ports.append(ports)

    def _format(self) -> None:
        """Format the data of brokers that have none, all for the same cluster."""
        ids = {broker: broker.cluster_id() for broker in self.brokers.values()}
        # The format of Kafka's random-uuid: 16 bytes as Base64 for URLs.
        self._cluster_id = next(filter(None, ids.values()), secrets.token_urlsafe(16))

        def format_data(broker: Broker) -> None:
            arguments = ("format", "-c", str(broker.configuration), f"--cluster-id={self._cluster_id}")
            done = run_tool("kafka.tools.StorageTool", *arguments, timeout=READY_TIMEOUT)
            if done.returncode != 0:
                # The last lines name the bad property.
                output = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
                raise SetupError(
                    f"Kafka refused to format {broker.data} (status {done.returncode}): correct the property "
                    f"that its output names:\n{output}"
                )

        with ThreadPoolExecutor(max_workers=len(self.brokers)) as pool:
            list(pool.map(format_data, [broker for broker, known in ids.items() if known is None]))

    def _log_tail(self, broker: Broker) -> str:
        kept = "" if self._temporary else f" ({broker.log_file})"
        return f"; the end of its log{kept}:\n{log_tail(broker.log_file, 40) or '(it is empty)'}"
