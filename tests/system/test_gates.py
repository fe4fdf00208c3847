"""Does the example of gates run, and does it tell what it saw?"""

import time
from datetime import datetime, timedelta, timezone

import pytest

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration]


def test_the_gates_open_for_a_topic_that_is_complete_and_a_group_that_is_fresh(
    run_dag, make_topic, produce, new_group, broker
):
    topic, group = make_topic(partitions=2, config={"retention.ms": "-1"}), new_group()
    now = int(time.time() * 1000)
    # Partition 1 has been silent for an hour.
    produce(topic, {0: 3, 1: 1}, timestamps_ms={0: [now - 7_200_000, now - 1000, now], 1: [now - 3_600_000]})
    until = (datetime.now(tz=timezone.utc) - timedelta(minutes=5)).isoformat()
    broker.commit(group, {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1})
    told = run_dag("gates.py", topic=topic, group=group, until=until)
    assert told["state"] == "success"
    assert told["results"]["complete"]["idle"] == {topic: {"1": 1}}
    assert told["results"]["fresh"]["total_lag"] == 1
    assert told["results"]["moving"]["target"] == {topic: {"0": 1, "1": 1}}
