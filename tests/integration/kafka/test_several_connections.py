"""The logs of many partitions are asked over several connections at once."""

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture
def client(bootstrap_servers):
    """A client to which two partitions are many."""
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, chunk_size=1) as client:
        yield client


@pytest.fixture
def partitions(make_topic, produce):
    topic = make_topic(3)
    produce(topic, {0: 1, 1: 2, 2: 3})
    return [TopicPartition(topic, number) for number in range(3)]


def test_each_partition_gets_its_own_log_over_connections_that_are_kept(client, partitions, delete_records):
    delete_records(partitions[2].topic, {2: 2})
    logs = [LogRange(0, 1), LogRange(0, 2), LogRange(2, 3)]
    assert client.log_ranges(partitions) == dict(zip(partitions, logs, strict=True))
    before = list(client._session.connections._kept.values())
    client.offsets_for_time(partitions, 0)
    client.log_ranges(partitions)
    assert list(client._session.connections._kept.values()) == before
    assert len(before) == 6


def test_connections_of_a_user_who_may_see_no_group_are_kept(secured_kafka, make_topic):
    topic = make_topic(3, on=secured_kafka.plain)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    with OffsetsClient(secured_kafka.user("bob", ("topic", topic, "Read")), timeout=20) as client:
        client.log_ranges(partitions)
        before = list(client._session.connections._kept.values())
        for connection in before:
            connection.drain(1)
        client.log_ranges(partitions)
        assert list(client._session.connections._kept.values()) == before


def test_a_partition_that_was_added_is_found_over_all(client, partitions, bootstrap_servers, wait_for_topic):
    client.log_ranges(partitions)
    topic = partitions[0].topic
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    wait_for_topic(topic, 4)
    added = TopicPartition(topic, 3)
    assert client.log_ranges([*partitions, added])[added] == LogRange(0, 0)
    assert client.offsets_for_time([added], 0) == {added: None}
