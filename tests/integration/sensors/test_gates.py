"""What gates see of a real log: compaction."""

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from deadlines import until
from waiting import (
    FOREVER,
    OLD,
    WAYS,
    lag_sensor,
    now_ms,
    reading_of,
    wait_by,
)

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

pytestmark = pytest.mark.integration


def first_offset_from(bootstrap_servers, topic, offset):
    """The offset of the first record at or after an offset of partition 0."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "-", "enable.partition.eof": True}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        consumer.assign([ClientPartition(topic, 0, offset)])
        message = consumer.poll(10)
        return None if message.error() else message.offset()
    finally:
        consumer.close()


def test_offsets_that_compaction_removed_count_until_they_are_passed(
    group, own_kafka, make_topic, produce, connect
):
    kafka = own_kafka(properties={"log.cleaner.backoff.ms": "100"})
    connect(kafka.bootstrap_servers)
    compacting = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    topic = make_topic(partitions=1, config=compacting, on=kafka.bootstrap_servers)
    old = now_ms() - 7_200_000
    same = {"value": b"x", "key": b"same", "partition": 0}
    produce(topic, [{**same, "timestamp": old} for _ in range(20)], on=kafka.bootstrap_servers)

    def compacted():
        # The last of the old ones is kept until a newer one is looked at as well; that closes a segment.
        produce(topic, [{**same, "timestamp": now_ms()}], on=kafka.bootstrap_servers)
        return first_offset_from(kafka.bootstrap_servers, topic, 5) >= 20

    until(compacted)
    with OffsetsClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        client.commit(group, {TopicPartition(topic, 0): 5})
        log_end = client.log_ranges([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].end
    assert reading_of(lag_sensor(group))[1]["total_lag"] == log_end - 5
    # All that follows is young: what was old at the position is gone.
    assert reading_of(lag_sensor(group, max_time_lag=3600))[0] is True


@pytest.mark.parametrize("way", WAYS)
def test_a_lag_is_waited_for_in_each_way_with_the_same_result(
    way, group, make_topic, produce, commit, context
):
    topic = make_topic(partitions=1, config=FOREVER)
    produce(topic, {0: 10}, timestamps_ms={0: [OLD] * 10})
    commit(group, topic, {0: 3})
    value = wait_by(
        way,
        lambda **more: lag_sensor(group, max_time_lag=60, **more),
        context,
        lambda: commit(group, topic, {0: 10}),
    )
    partition = {"topic": topic, "partition": 0, "committed": 10, "log_start": 0, "log_end": 10, "lag": 0}
    assert value == {
        "version": 1,
        "group_id": group,
        "position": "group",
        "total_lag": 0,
        "max_partition_lag": 0,
        "time_lag": 0.0,
        "lost": 0,
        "topics": {topic: 0},
        "partitions": [partition | {"lost": 0, "time_lag": 0.0}],
        "progress": None,
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_target_is_reached_in_each_way_with_a_live_producer(
    way, group, make_topic, produce, commit, context
):
    topic = make_topic(partitions=2)
    produce(topic, {0: 10, 1: 4})
    commit(group, topic, {0: 3, 1: 4})

    def go_on():
        produce(topic, {0: 5, 1: 5})
        commit(group, topic, {0: 12, 1: 4})

    value = wait_by(
        way,
        lambda **more: OffsetsReachedSensor(task_id="gate", group_id=group, target="latest", **more),
        context,
        go_on,
    )
    assert value == {
        "version": 1,
        "group_id": group,
        "position": "group",
        "reached": True,
        "target": {topic: {"0": 10, "1": 4}},
        "current": {topic: {"0": 12, "1": 4}},
        "remaining": 0,
        "lost": 0,
        "progress": None,
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_is_waited_for_in_each_way_with_the_same_result(way, make_topic, produce, context):
    topic = make_topic(partitions=2, config=FOREVER)
    produce(topic, {0: 2, 1: 1}, timestamps_ms={0: [OLD, OLD + 10], 1: [OLD]})
    value = wait_by(
        way,
        lambda **more: TopicReachedSensor(
            task_id="gate", topics=topic, target="2013-01-01T00:26:40.005Z", **more
        ),
        context,
        lambda: produce(topic, {1: 1}, timestamps_ms={1: [OLD + 5]}),
    )
    assert value == {
        "version": 1,
        "target": "2013-01-01T00:26:40.005Z",
        "reached": True,
        "offsets": {topic: {"0": 1, "1": 1}},
        "log_end": {topic: {"0": 2, "1": 2}},
        "idle": {},
    }
