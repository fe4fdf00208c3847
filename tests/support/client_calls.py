"""The calls of a client: name -> call(client, group, partition)."""

from collections.abc import Callable

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

CALLS: dict[str, Callable[[OffsetsClient, str, TopicPartition], object]] = {
    "partitions": lambda client, *_: client.partitions(),
    "committed": lambda client, group, partition: client.committed(group, [partition]),
    "committed_everywhere": lambda client, group, _: client.committed_everywhere(group),
    "log_ranges": lambda client, _, partition: client.log_ranges([partition]),
    "offsets_for_time": lambda client, _, partition: client.offsets_for_time([partition], 0),
    "commit": lambda client, group, partition: client.commit(group, {partition: 1}),
    "describe_groups": lambda client, group, _: client.describe_groups([group]),
    "list_groups": lambda client, *_: client.list_groups(),
    "delete_groups": lambda client, group, _: client.delete_groups([group]),
}
