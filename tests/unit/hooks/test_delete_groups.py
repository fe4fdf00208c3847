"""The hook deletes groups, and logs what goes with them."""

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.offsets import TopicPartition


def test_what_a_group_held_is_in_the_log_before_it_is_deleted(client, make_topic, new_group, capsys):
    topic, group, missing = make_topic(partitions=2), new_group(), new_group()
    client.commit(group, {TopicPartition(topic, 0): 7})
    assert KafkaOffsetsHook().delete_groups([group, missing]) == {
        group: None,
        missing: f"there is no group {missing!r}: correct its name",
    }
    assert f"Deleting group {group}, with these offsets:\n{topic},0,7\n" in capsys.readouterr().out
    assert client.describe_groups([group])[group].state == "Dead"
