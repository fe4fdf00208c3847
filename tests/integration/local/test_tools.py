from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka_shell import KafkaTools

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.tools import describe_group

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def kafka_tools(bootstrap_servers):
    """The tools as everybody uses them, a JVM for each call."""
    return KafkaTools(bootstrap_servers)


@pytest.fixture
def commit(bootstrap_servers):
    def commit(group, offsets):
        client = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": group, "enable.auto.commit": False}
        )
        try:
            partitions = [
                TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()
            ]
            for partition in client.commit(offsets=partitions, asynchronous=False):
                assert partition.error is None
        finally:
            client.close()

    return commit


def test_describe_shows_what_was_committed(
    kafka_tools, bootstrap_servers, make_topic, produce, new_group, commit
):
    topic, group = make_topic(partitions=2), new_group()
    produce(topic, {0: 10, 1: 4})
    commit(group, {(topic, 0): 7, (topic, 1): 4})

    ours, theirs = describe_group(bootstrap_servers, group), kafka_tools.describe(group)
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
    rows = kafka_tools.describe_rows(group)

    assert sorted(
        (row["partition"], row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows
    ) == [
        (0, 7, 10, 3),
        (1, 4, 4, 0),
    ]


def test_a_group_that_does_not_exist_is_an_error_though_the_tool_exits_0(
    kafka_tools, bootstrap_servers, new_group
):
    group = new_group()
    result = kafka_tools.consumer_groups("--describe", "--group", group)
    assert result.returncode == 0
    assert f"Group {group} not found" in (result.error or "")
    with pytest.raises(SetupError, match=group):
        kafka_tools.describe(group)
    with pytest.raises(SetupError, match=f"could not describe '{group}'.*not found"):
        describe_group(bootstrap_servers, group)


def test_other_tools_run_too(kafka_tools, bootstrap_servers, make_topic):
    topic = make_topic()
    result = kafka_tools.run(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap_servers, "--list"
    )
    assert topic in result.stdout.split()


def test_a_broker_that_does_not_answer_ends_at_the_timeout(kafka_tools):
    with pytest.raises(SetupError, match=r"did not finish within 0\.5 s"):
        kafka_tools.consumer_groups("--list", timeout=0.5)
