"""The lag of a group without a commit is unknown; what a deleted group held is in the log."""

import pytest

from airflow_kafka_offsets.errors import DriftError, NoCommitError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.offsets import TopicPartition


def test_a_group_without_a_commit_on_the_named_topics_has_no_lag(client, make_topic, produce, new_group):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 3, 1: 4})
    with pytest.raises(NoCommitError, match=f"'{group}' has no committed offset on {topic}-0, {topic}-1"):
        KafkaOffsetsHook().lag(group, topic)
    client.commit(group, {TopicPartition(topic, 0): 1})
    assert KafkaOffsetsHook().lag(group, topic)["total_lag"] == 2


def test_a_position_beyond_the_log_is_no_lag_of_0(make_topic, produce, commit, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    commit(group, topic, {0: 6})
    with pytest.raises(DriftError, match="beyond the log end"):
        KafkaOffsetsHook().lag(group)


def test_what_a_group_held_is_in_the_log_before_it_is_deleted(client, make_topic, new_group, capsys):
    topic, group, missing = make_topic(partitions=2), new_group(), new_group()
    client.commit(group, {TopicPartition(topic, 0): 7})
    assert KafkaOffsetsHook().delete_groups([group, missing]) == {
        group: None,
        missing: f"there is no group {missing!r}: correct its name",
    }
    assert f"Deleting group {group}, with these offsets:\n{topic},0,7\n" in capsys.readouterr().out
    assert client.describe_groups([group])[group].state == "Dead"
