"""Commands that read: lags, waits and drift of a group and its checkpoint."""

import json

import pytest

from airflow_kafka_offsets.model.offsets import Commit, TopicPartition


@pytest.fixture
def group(topic, new_group, commit):
    """A group that has read 7 of 10 records of one partition, and nothing of the other."""
    name = new_group()
    commit(name, topic, {0: 7})
    return name


def test_group_lag_has_stable_keys_and_null_for_no_commit(value, group, topic):
    read = {
        "topic": topic,
        "partition": 0,
        "committed": 7,
        "log_start": 0,
        "log_end": 10,
        "lag": 3,
        "lost": 0,
    }
    unread = {"partition": 1, "committed": None, "log_end": 4, "lag": None}
    assert value("group lag GROUP") == {
        "version": 1,
        "group_id": group,
        "total_lag": 3,
        "max_partition_lag": 3,
        "lost": 0,
        "topics": {topic: 3},
        "partitions": [read, read | unread],
    }


def test_a_group_without_a_commit_on_the_named_topic_has_no_lag(do):
    done = do("group lag nobody-ever --topic TOPIC --output json")
    assert done.code == 1
    assert "'nobody-ever' has no committed offset on" in done.err


def test_the_lag_of_several_groups_is_a_line_for_each_and_one_without_commits_an_error(do, group):
    done = do("group lag GROUP nobody-ever")
    assert done.code == 1
    assert [group, "2", "3", "3", "0"] in [line.split() for line in done.out.splitlines()]
    assert "nobody-ever: group 'nobody-ever' has no committed offsets on this broker" in done.out
    assert "if the group has not committed yet, name --topic" in done.out
    found = json.loads(do("group lag GROUP nobody-ever --output json").out)["groups"]
    assert [(each["group_id"], each.get("total_lag")) for each in found] == [
        (group, 3),
        ("nobody-ever", None),
    ]


def test_a_group_that_others_have_misnamed_hides_no_other_one(do, group, topic, memory):
    memory.send("typo ", ((TopicPartition(topic, 0), Commit(2)),))
    done = do("group lag --all-groups")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["GROUP", group, "typo"]


def test_a_group_beyond_the_log_end_has_no_lag_and_can_be_deleted(do, group, topic, commit):
    commit(group, topic, {0: 11})
    for groups in (group, "--all-groups"):
        done = do(f"group lag {groups}")
        assert (done.code, f"beyond the log end in {topic}-0" in done.out + done.err) == (1, True)
    assert do("group delete GROUP --execute").code == 0
