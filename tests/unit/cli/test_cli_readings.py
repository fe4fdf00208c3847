"""Commands that read: checkpoints, and lags, waits and drift of a group."""

import json
from pathlib import Path

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


RECORDED = Path(__file__).parents[2] / "checkpoints"


def test_checkpoint_show_as_json(cli):
    location = RECORDED / "spark-4.2.0-named-sources-v2" / "checkpoint"
    shown = json.loads(cli("checkpoint", "show", location, "--output", "json").out)
    assert shown["batch_id"] == 0
    assert shown["pending_batch_id"] is None
    assert shown["query_id"]
    assert shown["sources"] == [
        {"source": "orders", "kafka": True, "offsets": {"sp_nm42_a": {"0": 10, "1": 10, "2": 10}}},
        {"source": "pay_2", "kafka": True, "offsets": {"sp_nm42_b": {"0": 15, "1": 15}}},
        {"source": "rt", "kafka": False, "offsets": None},
    ]


def test_checkpoint_show_as_a_table(cli):
    done = cli("checkpoint", "show", RECORDED / "spark-4.0.0-uncommitted-last" / "checkpoint")
    assert done.code == 0
    assert "pending  none" not in done.out
    assert "SOURCE" in done.out


def test_a_location_without_a_checkpoint_is_exit_1_and_a_sentence(cli, tmp_path):
    done = cli("checkpoint", "show", tmp_path)
    assert done.code == 1
    assert done.err.startswith("Error: ")
