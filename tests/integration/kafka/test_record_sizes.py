"""Sizes of records: a sample, without a group."""

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topic(make_topic, bootstrap_servers):
    name = make_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(1_000):
        producer.produce(name, b"v" * 70, b"k" * 10, partition=0, headers=[("header", b"x" * 14)])
        if number < 3:
            producer.produce(name, None, b"k" * 7, partition=1)
    producer.flush(30)
    return name


def test_a_record_counts_with_key_value_and_headers(topic, bootstrap_servers):
    full, few = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        for _ in range(2):
            sizes = client.record_sizes({full: 900, few: 1})
            assert set(sizes[full]) == {100}
            assert 0 < len(sizes[full]) <= 600
            assert sizes[few] == [7, 7]
        # At the end there is none.
        assert client.record_sizes({full: 1_000}) == {}
        assert client.record_sizes({}) == {}
