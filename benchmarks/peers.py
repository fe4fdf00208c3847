"""Lag and commits with other clients: the plain confluent-kafka client, kafka-python and Kafka's own tool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cluster import Cluster
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from kafka import TopicPartition as PythonPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.structs import OffsetAndMetadata

from airflow_kafka_offsets.model.offsets import TopicPartition

LOG_END = -1


class BareClient:
    """
    confluent-kafka, kept between calls.

    :param group_id: the only group whose commits a Consumer reads.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.servers,
                "group.id": group_id,
                "isolation.level": "read_uncommitted",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    def lag_in_one_call(self, partitions: Sequence[TopicPartition]) -> int:
        """Return the total lag: all partitions in one call for the commits, and in one for the log ends."""
        asked = [ClientPartition(*tp) for tp in partitions]
        committed = self._consumer.committed(asked, timeout=120)
        ends = self._consumer.offsets_for_times(
            [ClientPartition(tp.topic, tp.partition, LOG_END) for tp in partitions], timeout=120
        )
        return sum(end.offset - at.offset for at, end in zip(committed, ends, strict=True))


class KafkaPython:
    """kafka-python's KafkaAdminClient, kept between calls."""

    def __init__(self, cluster: Cluster) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=cluster.servers, request_timeout_ms=120_000)

    def lag(self, group_ids: Sequence[str]) -> int:
        """Return the total lag of groups: all commits in one request, and all log ends in one."""
        found = self._admin.list_group_offsets(dict.fromkeys(group_ids))
        partitions = {tp for commits in found.values() for tp in commits}
        ends = self._admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        return sum(
            ends[tp].offset - commit.offset for commits in found.values() for tp, commit in commits.items()
        )

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit in one request, and check each partition's response."""
        asked = {PythonPartition(*tp): OffsetAndMetadata(at, metadata, -1) for tp, at in offsets.items()}
        failed = {
            error.__name__
            for error in self._admin.alter_group_offsets(group_id, asked).values()
            if error.errno != 0
        }
        if failed:
            raise RuntimeError(", ".join(sorted(failed)))

    def reset(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Reset to the log starts."""
        asked = {PythonPartition(*tp): OffsetSpec.EARLIEST for tp in partitions}
        failed = {
            said["error"].__name__
            for said in self._admin.reset_group_offsets(group_id, asked).values()
            if said["error"].errno != 0
        }
        if failed:
            raise RuntimeError(", ".join(sorted(failed)))


def described_lag(cluster: Cluster, *which: str) -> int:
    """Return the total lag that ``kafka-consumer-groups --describe`` prints."""
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG
    row = re.compile(r"^\S+ +\S+ +[0-9]+ +[0-9]+ +[0-9]+ +([0-9]+) ", re.MULTILINE)
    return sum(map(int, row.findall(cluster.kafka_tool("--describe", *which))))
