"""Reads and commits offsets with the Kafka client in the Spark driver's JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_kafka_offsets.errors import BrokerError, SetupError, UnknownTopicPartitionError
from airflow_kafka_offsets.kafka.commits import Texts, check_commit, commit_chunks
from airflow_kafka_offsets.kafka.config import RETENTION, scrubber
from airflow_kafka_offsets.kafka.explain import Call, commit_error
from airflow_kafka_offsets.kafka.failures import RETRIABLE, UNCERTAIN, UNKNOWN_PARTITION, Failure
from airflow_kafka_offsets.model.broker_addresses import SERVERS, check_servers
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.names import parse_group
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    IsolationLevel,
    LogRange,
    Offsets,
    Positions,
    TopicPartition,
    not_on_broker,
    summarize,
)
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.spark.java_offsets import JavaOffsets, java_list

_ARRIVED = 100
"""Milliseconds to wait for a result that should have arrived already."""

# Milliseconds: at the end of a job an unreachable broker must not delay the driver.
_CLOSE = 1_000

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""An id of all zeros: the broker is too old for topic ids."""

_RENAMED = {"UNKNOWN_TOPIC_OR_PARTITION": "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_SERVER_ERROR": "UNKNOWN"}
"""Java's error names -> librdkafka's, which this package uses."""

_REMEDIES = {
    "SASL_AUTHENTICATION_FAILED": (
        "correct kafka.sasl.jaas.config, kafka.sasl.mechanism or kafka.security.protocol"
    ),
    "_SSL": "correct the source's kafka.ssl.* options",
}
_CODES = {
    "SslAuthenticationException": "_SSL",
    "TimeoutException": "REQUEST_TIMED_OUT",
    "DisconnectException": "NETWORK_EXCEPTION",
    **dict.fromkeys(
        ("ConfigException", "IllegalArgumentException", "LoginException", "NoSuchFileException"),
        "_INVALID_ARG",
    ),
}
"""Names of Java exceptions without a code, or with another code than librdkafka's."""


class JvmOffsetsClient:
    """
    Reads and commits offsets of groups with the Java ``AdminClient``, through py4j.

    It has the methods of :class:`~airflow_kafka_offsets.kafka.client.OffsetsClient` that a Spark job needs.
    Each method ends within about ``timeout`` seconds; the Java client retries after temporary errors. Reading
    topics and logs takes some calls from Python into the JVM for each partition: about 1 ms.

    :param jvm: py4j's view of the driver's JVM.
    :param settings: properties of a Java client.
    """

    def __init__(self, jvm: Any, settings: Mapping[str, str], timeout: float = 10.0) -> None:
        self._jvm = jvm
        self._milliseconds = int(timeout * 1_000)
        self._servers = settings.get(SERVERS, "")
        self._cluster_id: str | None = None
        check_servers(self._servers)
        self._scrub = scrubber(settings)
        kafka = jvm.org.apache.kafka
        properties = jvm.java.util.Properties()
        for key, value in settings.items():
            properties.put(key, value)
        # A request must be able to fail and be repeated within the call.
        properties.put("default.api.timeout.ms", str(self._milliseconds))
        properties.put("request.timeout.ms", str(self._milliseconds // 2))
        with self._explaining("making a Kafka client"):
            try:
                self._admin = kafka.clients.admin.AdminClient.create(properties)
            except TypeError:
                # py4j represents a missing class as a package, which cannot be called.
                raise SetupError(
                    "there is no Kafka client in the driver's JVM "
                    "(org.apache.kafka.clients.admin.AdminClient): start Spark with the Kafka connector, "
                    "--packages org.apache.spark:spark-sql-kafka-0-10_..."
                ) from None
        self._partition = kafka.common.TopicPartition
        self._java_offsets = JavaOffsets(jvm)
        self._json = _json_writer(jvm)

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Commits:
        """Return a group's commits; ``None`` for a partition without a commit."""
        parse_group(group_id)
        with self._explaining(f"reading the offsets of group {group_id!r}"):
            found = self._wait(self._admin.listConsumerGroupOffsets(group_id).partitionsToOffsetAndMetadata())
            # Read all commits as one text: each read of a Java object is a round trip.
            commits = json.loads(self._json.writeValueAsString(found))
        # Keys are Java's text of a partition, which is also ours.
        return {tp: _commit_of(commits.get(str(tp))) for tp in partitions}

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str | Mapping[str, str] = "",
        check: Callable[[Commits], object] | None = None,
    ) -> None:
        """
        Commit offsets to a group that has no active members, with one metadata text, or topic -> its text.

        :param check: called with the group's commits right before they are overwritten; an exception from it
            ends the call.
        """
        texts = check_commit(group_id, offsets, metadata)
        if check is not None:
            check(self.committed(group_id, offsets))
        what = f"committing to group {group_id!r}"
        written: list[TopicPartition] = []
        for part in commit_chunks(group_id, offsets, texts):
            failures = self._commit(what, group_id, part, texts)
            written += [tp for tp in part if tp not in failures]
            if not failures:
                continue
            first = next(iter(failures.values()))
            if not written and set(failures.values()) == {first}:
                raise self._explain(what, first)
            raise commit_error(
                group_id,
                offsets,
                written,
                failures,
                lambda failure: self._explain(what, failure),
                uncertain=any(failure.code in UNCERTAIN for failure in failures.values()),
                retriable=all(failure.code in RETRIABLE for failure in failures.values()),
            )

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of topics, without missing topics."""
        return {
            topic: sorted(info.partition() for info in found.partitions())
            for topic, found in self._described(topics).items()
        }

    def cluster_id(self) -> str:
        """Return the cluster's id, which is read once; empty if the broker reports none."""
        if self._cluster_id is None:
            with self._explaining("asking for the id of the cluster"):
                self._cluster_id = self._wait(self._admin.describeCluster().clusterId()) or ""
        return self._cluster_id

    def log_ids(self, topics: Iterable[str]) -> LogIds:
        """Return the ids of the cluster and of topics, without topic ids of brokers before Kafka 2.8."""
        ids = {topic: found.topicId().toString() for topic, found in self._described(topics).items()}
        return LogIds(self.cluster_id(), {topic: found for topic, found in ids.items() if found != _NO_ID})

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """Return the start and end offsets of logs."""
        wanted = sorted(set(partitions))
        what = f"reading the log ends of {summarize(wanted)}"
        # Kafka's client would look for a missing partition until the timeout.
        there = self.partitions(tp.topic for tp in wanted)
        if missing := not_on_broker(wanted, there):
            raise UnknownTopicPartitionError(
                f"{what}: {summarize(missing)} is not on {self._servers}: correct topic and partition, or "
                f"kafka.{SERVERS}",
                missing=missing,
            )
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        with self._explaining(what):
            starts = self._offsets(wanted, spec.earliest(), isolation_level)
            ends = self._offsets(wanted, spec.latest(), isolation_level)
        # Retention may have moved the start of an emptied log past the end that was read before.
        return {tp: LogRange(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}

    def offsets_for_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Positions:
        """Return the first offset at or after a time, in ms since 1970; ``None`` if no record is that new."""
        wanted = sorted(set(partitions))
        at = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
        with self._explaining(f"looking up a time in {summarize(wanted)}"):
            offsets = self._offsets(wanted, at, "read_uncommitted")
        return {tp: None if offset < 0 else offset for tp, offset in offsets.items()}

    def offsets_retention_minutes(self) -> int | None:
        """Return how long the broker keeps offsets of a group without members; needs *DescribeConfigs*."""
        config = self._jvm.org.apache.kafka.common.config
        try:
            with self._explaining("reading the broker's configuration"):
                broker = self._wait(self._admin.describeCluster().nodes()).iterator().next()
                # py4j does not find an inner class as an attribute.
                kind = getattr(config, "ConfigResource$Type").BROKER
                wanted = java_list(self._jvm, [config.ConfigResource(kind, broker.idString())])
                settings = next(iter(self._wait(self._admin.describeConfigs(wanted).all()).values()))
                found = settings.get(RETENTION)
                value = None if found is None else str(found.value())
        except BrokerError:
            return None
        return int(value) if value is not None and value.isdecimal() else None

    def close(self) -> None:
        """Close the client's connections; abandon a running call."""
        self._admin.close(self._jvm.java.time.Duration.ofMillis(_CLOSE))

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        """Return Java's descriptions of the topics that exist."""
        wanted = sorted(set(topics))
        what = f"looking up topics {', '.join(wanted[:5])}"
        with self._explaining(what):
            answers = self._admin.describeTopics(java_list(self._jvm, wanted)).topicNameValues()
        found = {}
        for topic in wanted:
            try:
                found[topic] = self._wait(answers.get(topic))
            except _jvm_errors() as error:  # noqa: PERF203  # each topic has its own error
                failure = self._failure(error)
                if failure.code not in UNKNOWN_PARTITION:
                    raise self._explain(what, failure) from None
        return found

    def _offsets(
        self, wanted: Iterable[TopicPartition], spec: Any, isolation_level: IsolationLevel
    ) -> Offsets:
        keys = {tp: self._partition(*tp) for tp in wanted}
        request = self._jvm.java.util.HashMap()
        for key in keys.values():
            request.put(key, spec)
        level = self._jvm.org.apache.kafka.common.IsolationLevel.valueOf(isolation_level.upper())
        options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        found = self._wait(self._admin.listOffsets(request, options).all())
        return {tp: found.get(key).offset() for tp, key in keys.items()}

    def _commit(
        self, what: str, group_id: str, offsets: Offsets, texts: Texts
    ) -> dict[TopicPartition, Failure]:
        with self._explaining(what):
            commits = self._jvm.java.util.HashMap()
            for topic in {tp.topic for tp in offsets}:
                part = {tp: offset for tp, offset in offsets.items() if tp.topic == topic}
                # librdkafka ends its metadata with a NUL, and reads beyond the end of metadata without a NUL.
                text = f"{texts[topic]}\0" if texts[topic] else ""
                commits.putAll(self._java_offsets(part, text))
            result = self._admin.alterConsumerGroupOffsets(group_id, commits)
        if self._failure_of(result.all()) is None:
            return {}
        # The error is one partition's: look up each partition's own result.
        results = {tp: result.partitionResult(self._partition(*tp)) for tp in offsets}
        failures = {tp: self._failure_of(each, _ARRIVED) for tp, each in results.items()}
        return {tp: failure for tp, failure in failures.items() if failure is not None}

    def _failure_of(self, future: Any, milliseconds: int | None = None) -> Failure | None:
        try:
            self._wait(future, milliseconds)
        except _jvm_errors() as error:
            return self._failure(error)
        return None

    def _wait(self, future: Any, milliseconds: int | None = None) -> Any:
        # A little longer than the client's own timeout.
        limit = self._milliseconds + 1_000 if milliseconds is None else milliseconds
        return future.get(limit, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """Turn exceptions of the JVM into a :class:`BrokerError`."""
        try:
            yield
        except _jvm_errors() as error:
            raise self._explain(what, self._failure(error)) from None

    def _explain(self, what: str, failure: Failure) -> BrokerError:
        return Call(what, self._servers, self._milliseconds / 1_000).explain(failure, "Read")

    def _failure(self, error: Exception) -> Failure:
        thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        if thrown is None:
            code, text = "_FAIL", str(error)
        else:
            while thrown.getCause() is not None:
                thrown = thrown.getCause()
            name = thrown.getClass().getSimpleName()
            errors = self._jvm.org.apache.kafka.common.protocol.Errors
            code = _CODES.get(name) or errors.forException(thrown).name()
            code, text = _RENAMED.get(code, code), thrown.getMessage() or name
        return Failure(code, shorten(self._scrub(text), 300), _REMEDIES.get(code, ""))


def _jvm_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of calls into the JVM; without a JVM, py4j may not be installed."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def _json_writer(jvm: Any) -> Any:
    jackson = jvm.com.fasterxml.jackson
    writer = jackson.databind.ObjectMapper()
    # Kafka's classes have no getters that Jackson recognizes.
    any_field = getattr(jackson.annotation, "JsonAutoDetect$Visibility").ANY
    return writer.setVisibility(jackson.annotation.PropertyAccessor.FIELD, any_field)


def _commit_of(found: Mapping[str, Any] | None) -> Commit | None:
    if found is None or found["offset"] < 0:
        return None
    return Commit(found["offset"], (found["metadata"] or "").split("\0", 1)[0])
