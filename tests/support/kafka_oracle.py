"""Kafka's own tool for groups in one JVM, so that a call takes milliseconds and tests may ask it often."""

import contextlib
import functools
import gc
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka_shell import DescribeRow, ToolResult, parse_describe

from airflow_kafka_offsets.local.jars import tools_classpath
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition

DEADLINE = 30.0


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """A Spark session leaves its own treatment of exceptions in py4j, for every JVM."""
    from py4j import java_gateway, protocol

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
        yield


class Oracle:
    """
    Runs Kafka's own tool for groups, and Kafka's own AdminClient, many times in one JVM.

    :param gateway: py4j's way into the JVM.
    :param bootstrap_servers: the broker, where a call names no other one.
    """

    def __init__(self, gateway: Any, bootstrap_servers: str) -> None:
        self._gateway = gateway
        self._bootstrap_servers = bootstrap_servers
        self.jvm = jvm = gateway.jvm
        # What a call prints is read from these, and they are the JVM's, not the call's.
        self._lock = threading.Lock()
        self._out, self._err = (jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(self._out, True))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(self._err, True))
        self._throw_on_exit()
        self._admins: dict[str, Any] = {}

    def consumer_groups(self, *arguments: str, on: str | None = None) -> ToolResult:
        """
        Run ``kafka-consumer-groups``; a usage error, after which it would exit with 1, has that exit status.
        """
        from py4j.protocol import Py4JJavaError

        broker = ["--bootstrap-server", on or self._bootstrap_servers]
        with self._lock:
            self._out.reset()
            self._err.reset()
            raised, status = "", 0
            try:
                with _plain_errors():
                    self._class(CONSUMER_GROUPS).main(self._array("java.lang.String", *broker, *arguments))
            except Py4JJavaError as error:
                raised, status = str(error.java_exception), 1
            return ToolResult(self._out.toString(), self._err.toString() + raised, status)

    def describe_rows(self, group: str) -> list[DescribeRow]:
        """Return the table of ``kafka-consumer-groups --describe``, sorted by topic and partition."""
        result = self.consumer_groups("--describe", "--group", group)
        assert result.error is None, result.error
        return sorted(parse_describe(result.stdout), key=lambda row: (row["topic"], row["partition"]))

    def reset(self, groups: str | list[str], *flags: str, on: str | None = None) -> ToolResult:
        """Run ``kafka-consumer-groups --reset-offsets`` on a group or several."""
        names = [groups] if isinstance(groups, str) else groups
        return self.consumer_groups(
            "--reset-offsets", *(word for name in names for word in ("--group", name)), *flags, on=on
        )

    def commit(self, groups: Mapping[str, Mapping[tuple[str, int], int]], *, on: str | None = None) -> None:
        """Commit offsets to groups, whether they are in the log or not."""
        partition = self.jvm.org.apache.kafka.common.TopicPartition
        offset = self.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        sent = []
        for group, offsets in groups.items():
            wanted = self.jvm.java.util.HashMap()
            for (topic, number), position in offsets.items():
                wanted.put(partition(topic, number), offset(position))
            sent.append(self.admin(on).alterConsumerGroupOffsets(group, wanted))
        with _plain_errors():
            for answer in sent:
                answer.all().get()

    def committed(self, *groups: str, on: str | None = None) -> dict[str, Offsets]:
        """Return all that groups have committed."""
        spec = self.jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec
        wanted = self.jvm.java.util.HashMap()
        for group in groups:
            wanted.put(group, spec())
        with _plain_errors():
            answer = self.admin(on).listConsumerGroupOffsets(wanted).all().get()
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

    def admin(self, on: str | None = None) -> Any:
        """Kafka's own AdminClient of a broker."""
        servers = on or self._bootstrap_servers
        if servers not in self._admins:
            settings = self.jvm.java.util.Properties()
            settings.put("bootstrap.servers", servers)
            self._admins[servers] = self.jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        return self._admins[servers]

    def _class(self, name: str) -> Any:
        return functools.reduce(getattr, name.split("."), self.jvm)

    def _array(self, of: str, *items: Any) -> Any:
        array = self._gateway.new_array(self._class(of), len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    def _throw_on_exit(self) -> None:
        """Make Kafka's tools throw where they would end the JVM."""
        lang = self.jvm.java.lang
        named = lang.Class.forName
        handles = lang.invoke.MethodHandles
        throwing = handles.throwException(lang.Void.TYPE, named("java.lang.RuntimeException"))
        exits = lang.RuntimeException("the tool would exit")
        always = handles.insertArguments(throwing, 0, self._array("java.lang.Object", exits))
        taken = self._array("java.lang.Class", lang.Integer.TYPE, named("java.lang.String"))
        on_exit = self._exit_class()
        procedure = lang.invoke.MethodHandleProxies.asInterfaceInstance(
            named(f"{on_exit}$Procedure"), handles.dropArguments(always, 0, taken)
        )
        self._class(on_exit).setExitProcedure(procedure)

    def _exit_class(self) -> str:
        """Return the name of the class by which Kafka's tools end the JVM; Kafka 4.4 moved it."""
        from py4j.protocol import Py4JJavaError

        before = "org.apache.kafka.common.utils.Exit"
        try:
            self.jvm.java.lang.Class.forName(before)
        except Py4JJavaError:
            return "org.apache.kafka.common.utils.internals.Exit"
        return before


@pytest.fixture(scope="session")
def oracle(bootstrap_servers: str) -> Iterator[Oracle]:
    """Kafka's own tool for groups in one JVM, in which a call takes milliseconds."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    # It logs once more when the interpreter ends and pytest has closed its streams.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    (jar,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    quiet = ["-Dorg.apache.logging.log4j.level=OFF", "-Dlog4j2.statusLogger.level=OFF"]
    port, token, process = launch_gateway(
        jarpath=str(jar),
        classpath=os.pathsep.join(map(str, tools_classpath())),
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


@pytest.fixture(scope="session")
def kafka_tools(oracle: Oracle) -> Oracle:
    """Another name of the oracle, where it is asked what its tool prints."""
    return oracle
