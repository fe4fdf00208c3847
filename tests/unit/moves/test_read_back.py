"""
A commit is done when it was read back: also where a broker acknowledges it and does not write it, or where
somebody writes in between.
"""

from datetime import datetime, timezone

import pytest

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, CheckpointMovedError, CommitError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.write import commit_forward

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
BY = CommitMetadata(tool="a test")
FLIGHTS = TopicPartition("flights", 0)


@pytest.fixture
def query(broker, client, new_query):
    """One that has read 5 of 9 records, as its group g has."""
    broker.create("flights")
    broker.append("flights", 0, range(9))
    client.commit("g", {FLIGHTS: 5})
    return new_query({"flights": {0: 5}})


@pytest.fixture
def unwritten(query, broker, monkeypatch):
    """Commits are acknowledged and not written."""
    monkeypatch.setattr(broker, "send", lambda *_: ())


def offset_of_group(client):
    return client.committed("g", [FLIGHTS])[FLIGHTS].offset


def reset(client, query=None, group="g"):
    """Plan and apply a reset of a group, and of the checkpoint that it follows if there is one."""
    checkpoint = None if query is None else SparkCheckpoint(query.location)
    named = GroupSelection.parse(group, ["flights"])
    plan = plan_reset(client, checkpoint, named, Place("offsets", {FLIGHTS: 2}), now=NOW)
    return apply_pipeline(client, plan, BY, checkpoint, quiet_period=0)


@pytest.mark.usefixtures("unwritten")
def test_a_commit_that_is_acknowledged_and_not_written_is_an_error(client):
    with pytest.raises(CommitError, match="flights-0: planned 2, read back 5"):
        reset(client)


@pytest.mark.usefixtures("unwritten")
def test_a_reset_with_a_checkpoint_whose_commit_is_not_written_is_an_error(client, query, monkeypatch):
    with pytest.raises(CommitError, match=r"planned 2, read back 5.*the checkpoint .* was moved before"):
        reset(client, query)
    monkeypatch.undo()
    reset(client, query)

    assert offset_of_group(client) == query.stands()[0] == 2


@pytest.mark.usefixtures("unwritten")
def test_a_first_commit_after_a_checkpoint_that_is_not_written_is_an_error(client, query):
    with pytest.raises(CommitError, match="planned 2, read back None"):
        reset(client, query, "new")


@pytest.mark.usefixtures("unwritten")
def test_a_commit_of_the_listener_that_is_not_written_is_an_error(client):
    with pytest.raises(CommitError, match="does not hold the offsets"):
        commit_forward(client, "g", {FLIGHTS: 7}, query="flights", check=lambda found: {"flights": ""})


@pytest.fixture
def meanwhile(query, client, monkeypatch):
    """meanwhile(do) does something after each commit of the client, before anything is read back."""
    commit = client.commit

    def arrange(do):
        def commit_and_do(*arguments, **how):
            commit(*arguments, **how)
            do()

        monkeypatch.setattr(client, "commit", commit_and_do)

    return arrange


def test_a_commit_that_another_one_has_overwritten_is_an_error(client, broker, meanwhile):
    meanwhile(lambda: broker.send("g", ((FLIGHTS, Commit(7)),)))

    with pytest.raises(CommitError, match="planned 2, read back 7.*another process commits to this group"):
        reset(client)


def test_commits_that_were_deleted_with_the_topic_are_an_error_that_says_so(client, broker, meanwhile):
    meanwhile(lambda: broker.create("flights"))

    with pytest.raises(CommitError, match="planned 2, read back None.*or has deleted the group or the topic"):
        reset(client)


def test_a_query_that_begins_before_its_groups_are_committed_is_found_at_the_end(client, query, meanwhile):
    meanwhile(lambda: query.run(2, {"flights": {0: 9}}))

    with pytest.raises(CheckpointError, match="the offsets read back after the move"):
        reset(client, query)


def test_a_commit_is_not_made_once_a_reset_to_where_the_group_is_has_begun(client, query):
    client.commit("g", {FLIGHTS: 2})
    checkpoint = SparkCheckpoint(query.location)
    planned = plan_checkpoint_commit(client, checkpoint, GroupSelection.parse("g"), BY)
    reset(client, query)

    with pytest.raises(CheckpointMovedError, match="was being committed; nothing was written"):
        apply_position(client, planned.plan, planned.metadata, planned.known_moves)
    assert offset_of_group(client) == 2


def test_a_position_that_a_move_overtakes_right_after_it_was_read_is_not_committed(
    client, query, monkeypatch
):
    checkpoint = SparkCheckpoint(query.location)
    read = checkpoint.read

    def read_then_move():
        state = read()
        reset(client, query)
        return state

    monkeypatch.setattr(checkpoint, "read", read_then_move)
    planned = plan_checkpoint_commit(client, checkpoint, GroupSelection.parse("g"), BY)
    with pytest.raises(CheckpointMovedError, match="was being committed; nothing was written"):
        apply_position(client, planned.plan, planned.metadata, planned.known_moves)
    assert offset_of_group(client) == 2
