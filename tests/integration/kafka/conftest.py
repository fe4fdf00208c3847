from __future__ import annotations

import contextlib
import functools
import gc
import logging
import re
import socket
import struct
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.jars import classpath_text, kafka_classpath
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS, ToolResult
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
DEADLINE = 30.0


@pytest.fixture
def client(bootstrap_servers) -> Iterator[OffsetsClient]:
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        yield client


@pytest.fixture
def join_group(bootstrap_servers) -> Iterator[Callable[..., Consumer]]:
    """join_group(group, topic, **settings) -> a consumer that has joined and holds all partitions."""
    members: list[Consumer] = []

    def join(group: str, topic: str, **settings: str) -> Consumer:
        assigned = threading.Event()
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "log_level": 0,
                "enable.auto.commit": False,
            }
            | settings
        )
        members.append(consumer)
        consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
        for _ in range(300):
            consumer.poll(0.1)
            if assigned.is_set():
                return consumer
        pytest.fail("the consumer did not join its group")

    yield join
    for member in members:
        member.close()


class Oracle:
    """
    Runs Kafka's own tool for groups, and Kafka's own AdminClient, many times in one JVM.

    :param gateway: py4j's way into the JVM.
    :param bootstrap_servers: the broker, where a call names no other one.
    """

    def __init__(self, gateway: Any, bootstrap_servers: str) -> None:
        self._gateway = gateway
        self._bootstrap_servers = bootstrap_servers
        self._jvm = jvm = gateway.jvm
        # What a call prints is read from these, and they are the JVM's, not the call's.
        self._lock = threading.Lock()
        self._out, self._err = (jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(self._out, True))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(self._err, True))
        self._throw_on_exit()
        self._admins: dict[str, Any] = {}

    def consumer_groups(self, *arguments: str, on: str | None = None) -> ToolResult:
        """Run ``kafka-consumer-groups``; a usage error, after which it would exit with 1, has that exit status."""
        from py4j.protocol import Py4JJavaError

        broker = ["--bootstrap-server", on or self._bootstrap_servers]
        with self._lock:
            self._out.reset()
            self._err.reset()
            raised, status = "", 0
            try:
                self._class(CONSUMER_GROUPS).main(self._array("java.lang.String", *broker, *arguments))
            except Py4JJavaError as error:
                raised, status = str(error.java_exception), 1
            return ToolResult(self._out.toString(), self._err.toString() + raised, status)

    def reset(self, groups: str | list[str], *flags: str, on: str | None = None) -> ToolResult:
        """Run ``kafka-consumer-groups --reset-offsets`` on a group or several."""
        names = [groups] if isinstance(groups, str) else groups
        return self.consumer_groups(
            "--reset-offsets", *(word for name in names for word in ("--group", name)), *flags, on=on
        )

    def commit(self, groups: Mapping[str, Mapping[tuple[str, int], int]], *, on: str | None = None) -> None:
        """Commit offsets to groups, whether they are in the log or not."""
        partition = self._jvm.org.apache.kafka.common.TopicPartition
        offset = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        sent = []
        for group, offsets in groups.items():
            wanted = self._jvm.java.util.HashMap()
            for (topic, number), position in offsets.items():
                wanted.put(partition(topic, number), offset(position))
            sent.append(self._admin(on).alterConsumerGroupOffsets(group, wanted))
        for answer in sent:
            answer.all().get()

    def committed(self, *groups: str, on: str | None = None) -> dict[str, Offsets]:
        """Return all that groups have committed."""
        spec = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec
        wanted = self._jvm.java.util.HashMap()
        for group in groups:
            wanted.put(group, spec())
        answer = self._admin(on).listConsumerGroupOffsets(wanted).all().get()
        found = {}
        for group in groups:
            # As text: each look into a Java object is a round trip.
            entries = re.findall(
                r"([\w.-]+)-([0-9]+)=OffsetAndMetadata\{offset=([0-9]+)", answer.get(group).toString()
            )
            found[group] = {
                TopicPartition(topic, int(number)): int(offset) for topic, number, offset in entries
            }
        return found

    def close(self) -> None:
        for admin in self._admins.values():
            admin.close()

    def _admin(self, on: str | None) -> Any:
        servers = on or self._bootstrap_servers
        if servers not in self._admins:
            settings = self._jvm.java.util.Properties()
            settings.put("bootstrap.servers", servers)
            self._admins[servers] = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        return self._admins[servers]

    def _class(self, name: str) -> Any:
        return functools.reduce(getattr, name.split("."), self._jvm)

    def _array(self, of: str, *items: Any) -> Any:
        array = self._gateway.new_array(self._class(of), len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    def _throw_on_exit(self) -> None:
        """Make Kafka's tools throw where they would end the JVM."""
        lang = self._jvm.java.lang
        named = lang.Class.forName
        handles = lang.invoke.MethodHandles
        throwing = handles.throwException(lang.Void.TYPE, named("java.lang.RuntimeException"))
        exits = lang.RuntimeException("the tool would exit")
        always = handles.insertArguments(throwing, 0, self._array("java.lang.Object", exits))
        taken = self._array("java.lang.Class", lang.Integer.TYPE, named("java.lang.String"))
        procedure = lang.invoke.MethodHandleProxies.asInterfaceInstance(
            named("org.apache.kafka.common.utils.Exit$Procedure"), handles.dropArguments(always, 0, taken)
        )
        self._jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(procedure)


@pytest.fixture(scope="session")
def oracle(bootstrap_servers) -> Iterator[Oracle]:
    """Kafka's own tool for groups in one JVM, in which a call takes milliseconds."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    # It logs once more when the interpreter ends and pytest has closed its streams.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    (jar,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    quiet = ["-Dorg.apache.logging.log4j.level=OFF", "-Dlog4j2.statusLogger.level=OFF"]
    port, token, process = launch_gateway(
        jarpath=str(jar),
        classpath=classpath_text(kafka_classpath()),
        java_path=str(find_java().path),
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m", *quiet],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    oracle = Oracle(gateway, bootstrap_servers)
    try:
        yield oracle
        oracle.close()
    finally:
        gateway.shutdown()
        process.stdin.close()
        try:
            process.wait(DEADLINE)
        finally:
            process.kill()
            process.wait()
        process.stdout.close()
        del oracle, gateway
        with warnings.catch_warnings():
            # The sockets to the JVM are left to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class Proxy:
    """
    Stands between clients and a broker that advertises it, and changes error codes in some answers.

    refuse(api_keys, code, times=None) puts ``code`` into the next ``times`` answers to these requests.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._refuse: dict[int, tuple[int, int | None]] = {}
        self.refused = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def refuse(self, api_keys: tuple[int, ...], code: int, times: int | None = None) -> None:
        with self._lock:
            self._refuse = dict.fromkeys(api_keys, (code, times))
            self.refused = 0

    def close(self) -> None:
        # A thread in accept() or recv() is woken by this, not by close().
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((LOOPBACK, self._upstream))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            asked: dict[int, tuple[int, int, int]] = {}
            self._start(self._pass_on, near, far, lambda frame, asked=asked: self._note(frame, asked))
            self._start(self._pass_on, far, near, lambda frame, asked=asked: self._change(frame, asked))

    def _pass_on(
        self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = source.makefile("rb")
            with stream:
                while size := stream.read(4):
                    frame = change(stream.read(*struct.unpack(">i", size)))
                    target.sendall(struct.pack(">i", len(frame)) + frame)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _note(self, frame: bytes, asked: dict[int, tuple[int, int, int]]) -> bytes:
        api_key, version, correlation = struct.unpack_from(">hhi", frame)
        with self._lock:
            code, times = self._refuse.get(api_key, (0, 0))
            if times == 0:
                return frame
            if times is not None:
                self._refuse = dict.fromkeys(self._refuse, (code, times - 1))
            self.refused += 1
        asked[correlation] = (api_key, version, code)
        # What is said to be refused must not be written: the broker writes it for nobody's group.
        return frame.replace(b"group-", b"nobody", 1) if api_key == OFFSET_COMMIT else frame

    def _change(self, frame: bytes, asked: dict[int, tuple[int, int, int]]) -> bytes:
        (correlation,) = struct.unpack_from(">i", frame)
        if correlation not in asked:
            return frame
        api_key, version, code = asked.pop(correlation)
        changed = bytearray(frame)
        for position in _error_codes(frame, api_key, version):
            struct.pack_into(">h", changed, position, code)
        return bytes(changed)


def _error_codes(frame: bytes, api_key: int, version: int) -> list[int]:
    """Where the error codes are, in the versions that today's librdkafka speaks."""
    if api_key == FIND_COORDINATOR:
        assert version <= 2, f"FindCoordinator v{version}"
        return [4 if version == 0 else 8]
    if api_key == OFFSET_FETCH:
        assert version <= 9, f"OffsetFetch v{version}"
        # The last field; behind it the tags: of the answer, from v8 on also of the (one) group.
        return [len(frame) - 2 - (0 if version < 6 else 1 if version < 8 else 2)]
    assert version <= 9, f"OffsetCommit v{version}"
    return _commit_error_codes(frame, flexible=version >= 8, position=8 if version >= 3 else 4)


def _commit_error_codes(frame: bytes, *, flexible: bool, position: int) -> list[int]:
    def count(size: str) -> int:
        nonlocal position
        if not flexible:
            (number,) = struct.unpack_from(size, frame, position)
            position += struct.calcsize(size)
            return number
        number = shift = 0
        while True:
            byte = frame[position]
            position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number - 1
            shift += 7

    position += flexible  # the tags of the header
    found = []
    for _ in range(count(">i")):
        length = count(">h")
        position += length
        for _ in range(count(">i")):
            found.append(position + 4)
            position += 6 + flexible
        position += flexible
    return found


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[Proxy]:
    """A broker that all clients reach through a proxy, whatever address they begin with."""
    port = free_port()
    proxy = Proxy(port)
    try:
        with EmbeddedKafka(
            port=port, properties={"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}"}
        ):
            yield proxy
    finally:
        proxy.close()


@pytest.fixture
def proxy(proxied_kafka) -> Iterator[Proxy]:
    """The proxy, which changes nothing until it is told to."""
    yield proxied_kafka
    proxied_kafka.refuse((), 0)
