"""
A commit is done when it was read back: also where a broker acknowledges it and does not write it, or where
somebody writes in between.
"""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointMovedError,
    ClientCrashedError,
    CommitError,
)
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.connection import Connections
from airflow_kafka_offsets.kafka.requests import send_commit
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Commit, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.apply import apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.write import commit_forward, commit_window

pytestmark = pytest.mark.integration

OFFSET_COMMIT = 8
NO_ERROR = 0
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
BY = CommitMetadata(tool="a test")


def reset(client, group, partition, query=None, to=2):
    """Plan and apply a reset of a group, and of the checkpoint that it follows if there is one."""
    checkpoint = None if query is None else SparkCheckpoint(query.location)
    named = GroupSelection.parse(group, [partition.topic])
    plan = plan_reset(client, checkpoint, named, Place("offsets", {partition: to}), now=NOW)
    return apply_pipeline(client, plan, BY, checkpoint, quiet_period=0)


@pytest.fixture
def unwritten(on_proxy, proxy, new_group):
    """A client, a partition, and a group at 5 whose further commits are acknowledged and not written."""
    client, partition = on_proxy
    group = new_group()
    client.commit(group, {partition: 5})
    proxy.refuse((OFFSET_COMMIT,), NO_ERROR)
    return client, partition, group


def test_a_commit_that_is_acknowledged_and_not_written_is_an_error(unwritten):
    client, partition, group = unwritten
    with pytest.raises(CommitError, match=rf"{partition}: planned 2, read back 5"):
        reset(client, group, partition)


def test_a_reset_with_a_checkpoint_whose_commit_is_not_written_is_an_error(unwritten, proxy, new_query):
    client, partition, group = unwritten
    query = new_query({partition.topic: {0: 5}})
    with pytest.raises(CommitError, match=r"planned 2, read back 5.*the checkpoint .* was moved before"):
        reset(client, group, partition, query)
    proxy.refuse((), NO_ERROR)
    reset(client, group, partition, query)

    assert client.committed(group, [partition])[partition].offset == query.stands()[0] == 2


def test_a_first_commit_after_a_checkpoint_that_is_not_written_is_an_error(unwritten, new_group, new_query):
    client, partition, _ = unwritten
    with pytest.raises(CommitError, match=r"planned 2, read back None"):
        reset(client, new_group(), partition, new_query({partition.topic: {0: 5}}))


def test_a_fenced_commit_that_is_not_written_is_made_again(unwritten, proxy):
    client, partition, group = unwritten
    proxy.refuse((OFFSET_COMMIT,), NO_ERROR, times=1)
    window = OffsetWindow({partition: OffsetRange(5, 9)})
    assert commit_window(client, group, window, "mine", fenced=True) == window.end
    assert proxy.refused == 1
    assert client.committed(group, [partition]) == {partition: Commit(9, "mine")}


def test_a_window_that_is_not_fenced_and_not_written_is_an_error(unwritten):
    client, partition, group = unwritten
    with pytest.raises(CommitError, match=rf"{partition}: planned 9, read back 5"):
        commit_window(client, group, OffsetWindow({partition: OffsetRange(5, 9)}), fenced=False)


def test_a_commit_of_the_listener_that_is_not_written_is_an_error(unwritten):
    client, partition, group = unwritten
    with pytest.raises(CommitError, match="does not hold the offsets"):
        commit_forward(client, group, {partition: 7}, {partition.topic: ""}, query="flights", check=dict)


@pytest.fixture
def meanwhile(client, monkeypatch):
    """meanwhile(do) does something after each commit of the client, before anything is read back."""
    commit = OffsetsClient.commit

    def arrange(do):
        def commit_and_do(self, *arguments, **how):
            commit(self, *arguments, **how)
            do()

        monkeypatch.setattr(OffsetsClient, "commit", commit_and_do)

    return arrange


@pytest.fixture
def partition(make_topic, produce):
    topic = make_topic(partitions=1)
    produce(topic, {0: 9})
    return TopicPartition(topic, 0)


@pytest.fixture
def others_commit(bootstrap_servers, client):
    """others_commit(group, {partition: 3}, text) commits past our own client, as any other tool does."""

    def commit(group, offsets, text=""):
        connections = Connections({"bootstrap.servers": bootstrap_servers}, group)
        texts = {tp.topic: text for tp in offsets}
        assert set(send_commit(connections.get(), offsets, texts, 20).values()) == {None}
        connections.close(5)

    return commit


def test_a_commit_that_another_one_has_overwritten_is_an_error(
    client, new_group, partition, meanwhile, others_commit
):
    group = new_group()
    client.commit(group, {partition: 5})
    meanwhile(lambda: others_commit(group, {partition: 7}))

    with pytest.raises(CommitError, match="planned 2, read back 7.*another process commits to this group"):
        reset(client, group, partition)


def test_a_query_that_begins_before_its_groups_are_committed_is_found_at_the_end(
    client, new_group, new_query, partition, meanwhile
):
    group, query = new_group(), new_query({partition.topic: {0: 5}})
    client.commit(group, {partition: 5})
    meanwhile(lambda: query.run(2, {partition.topic: {0: 9}}))

    with pytest.raises(CheckpointError, match="the offsets read back after the move"):
        reset(client, group, partition, query)


def test_a_commit_is_not_made_once_a_reset_to_where_the_group_is_has_begun(
    client, new_group, new_query, partition, others_commit
):
    group, query = new_group(), new_query({partition.topic: {0: 5}})
    client.commit(group, {partition: 2})
    checkpoint = SparkCheckpoint(query.location)
    planned = plan_checkpoint_commit(client, checkpoint, GroupSelection.parse(group), BY)
    reset(client, group, partition, query)

    with pytest.raises(CheckpointMovedError, match="was being committed; nothing was written"):
        apply_position(client, planned.plan, planned.metadata, planned.known_moves)
    assert client.committed(group, [partition])[partition].offset == 2


def test_a_response_that_nobody_waited_for_is_not_that_of_the_next_commit(
    bootstrap_servers, new_group, partition
):
    connections = Connections({"bootstrap.servers": bootstrap_servers}, new_group())
    connection = connections.get()
    sent = [ClientPartition(partition.topic, 0, 5)]
    connection.ask(lambda consumer: consumer.commit(offsets=sent, asynchronous=True))
    for _ in range(200):
        connection.drain(0.1)
        if connection.commit_responses:
            break

    missing = TopicPartition(f"{partition.topic}-missing", 0)
    results = send_commit(
        connection, {partition: 7, missing: 0}, dict.fromkeys((partition.topic, missing.topic), ""), 20
    )
    connections.close(5)
    assert results[missing] is not None
    assert results[partition] is not None, "this is the response to the commit before"


def test_a_commit_without_a_response_is_found_by_reading_it(client, new_group, partition, monkeypatch):
    group, real, sent = new_group(), Admin.commit, []

    def answer_is_lost(self, *arguments):
        sent.append(real(self, *arguments))
        raise ClientCrashedError("it died")

    monkeypatch.setattr(Admin, "commit", answer_is_lost)
    client.commit(group, {partition: 5}, "mine")
    assert sent == [{partition: None}]
    assert client.committed(group, [partition]) == {partition: Commit(5, "mine")}
