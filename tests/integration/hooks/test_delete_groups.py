"""The hook deletes groups, and logs what goes with them."""

from __future__ import annotations

import json

import pytest

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture
def hook(bootstrap_servers, monkeypatch):
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    return KafkaOffsetsHook()


def test_what_a_group_held_is_in_the_log_before_it_is_deleted(hook, client, make_topic, new_group, capsys):
    topic, group, missing = make_topic(partitions=2), new_group(), new_group()
    client.commit(group, {TopicPartition(topic, 0): 7})
    assert hook.delete_groups([group, missing]) == {
        group: None,
        missing: f"there is no group {missing!r}: correct its name",
    }
    assert f"Deleting group {group}, with these offsets:\n{topic},0,7\n" in capsys.readouterr().out
    assert client.describe_groups([group])[group].state == "Dead"
