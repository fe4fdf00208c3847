"""Reads topics and their logs with the Kafka client in the driver's JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import BrokerError, UnknownTopicPartitionError
from airflow_kafka_offsets.kafka.failures import UNKNOWN_PARTITION
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient
from airflow_kafka_offsets.spark.source_options import SERVERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kafka_in(spark: SparkSession) -> Any | None:
    """
    Return the session's JVM if it has Kafka's client, ``None`` if not.

    A session of Spark Connect has no JVM here; a driver without the connector has one without the client.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    from py4j.java_gateway import JavaClass

    return jvm if isinstance(jvm.org.apache.kafka.clients.admin.AdminClient, JavaClass) else None


class JvmBroker(JvmOffsetsClient):
    """
    Asks with Kafka's AdminClient, as Spark's own source does.

    Each partition takes some calls from Python into the JVM: about 1 ms.
    """

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of topics; one that does not exist is not in it."""
        wanted = sorted(set(topics))
        what = f"looking up topics {', '.join(wanted[:5])}"
        with self._explaining(what):
            names = self._jvm.java.util.ArrayList()
            for topic in wanted:
                names.add(topic)
            answers = self._admin.describeTopics(names).topicNameValues()
        found = {topic: self._partitions_of(what, answers.get(topic)) for topic in wanted}
        return {topic: numbers for topic, numbers in found.items() if numbers}

    def _partitions_of(self, what: str, answer: Any) -> list[int]:
        try:
            with self._explaining(what):
                return sorted(info.partition() for info in self._wait(answer).partitions())
        except BrokerError as error:
            if error.code not in UNKNOWN_PARTITION:
                raise
            return []

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        """
        Return what the logs hold.

        :raises UnknownTopicPartitionError: if one of them is not on the broker.
        """
        wanted = sorted(set(partitions))
        what = f"reading the log ends of {summarize(wanted)}"
        # Kafka's client would look for a partition that does not exist until the time is over.
        there = self.partitions(tp.topic for tp in wanted)
        if missing := [tp for tp in wanted if tp.partition not in there.get(tp.topic, ())]:
            raise UnknownTopicPartitionError(
                f"{what}: {summarize(missing)} is not on {self._servers}: correct topic and partition, or {SERVERS}",
                missing=missing,
            )
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        with self._explaining(what):
            starts = self._offsets(wanted, spec.earliest(), isolation_level)
            ends = self._offsets(wanted, spec.latest(), isolation_level)
        # Retention may have moved the start of an emptied log past the end that was read for it.
        return {tp: LogRange(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}

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
