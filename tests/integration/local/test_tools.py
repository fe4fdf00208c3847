"""The tools of Kafka that commands run, in a JVM of their own."""

import pytest
from kafka_shell import parse_describe

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS, describe_group, run_tool
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


def test_describe_shows_what_was_committed(client, bootstrap_servers, make_topic, produce, new_group):
    topic, group = make_topic(partitions=2), new_group()
    produce(topic, {0: 10, 1: 4})
    client.commit(group, {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 4})
    rows = parse_describe(describe_group(bootstrap_servers, group))
    assert sorted(
        (row["partition"], row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows
    ) == [(0, 7, 10, 3), (1, 4, 4, 0)]


def test_a_group_that_does_not_exist_is_an_error_though_the_tool_exits_0(bootstrap_servers, new_group):
    group = new_group()
    with pytest.raises(SetupError, match=f"could not describe '{group}'.*not found"):
        describe_group(bootstrap_servers, group)


def test_a_tool_that_does_not_end_is_ended_at_the_timeout(bootstrap_servers):
    with pytest.raises(SetupError, match=r"did not finish within 0\.5 s"):
        run_tool(CONSUMER_GROUPS, "--bootstrap-server", bootstrap_servers, "--list", timeout=0.5)
