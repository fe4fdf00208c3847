from __future__ import annotations

import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from deadlines import until

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.integration


def commit(context, **parameters):
    return CommitOffsetsOperator(task_id="commit", **parameters).execute(context)


def test_a_checkpoints_batch_is_committed_whole_and_shown_by_kafkas_tool(
    new_query, topic, new_group, holds, context
):
    orders = KafkaPipeline(
        group_id=new_group(), checkpoint_location=new_query({topic: {0: 10, 1: 5}}).location
    )
    receipt = commit(context, **orders)
    assert holds(orders.group_id) == {0: 10, 1: 5}
    assert receipt["before"] == {topic: {"0": None, "1": None}}
    assert receipt["after"] == {topic: {"0": 10, "1": 5}}
    assert (receipt["changed"], receipt["verified"]) == (2, True)
    assert receipt["source"]["batch_id"] == 1


def test_an_older_batch_is_refused_and_committed_when_allowed(new_query, topic, new_group, holds, context):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 10}}).location)
    older = {"group_id": group, "checkpoint_location": new_query({topic: {0: 4}}).location}
    with pytest.raises(AirflowFailException, match="nothing was changed: .* would go backwards"):
        commit(context, **older)
    assert holds(group) == {0: 10}
    commit(context, **older, allow_rewind=True)
    assert holds(group) == {0: 4}


def test_a_checkpoint_that_has_read_a_topic_before_it_was_created_again_is_refused(
    new_query, make_topic, produce, recreate, new_group, holds, context
):
    topic, group = make_topic(2), new_group()
    now = int(time.time() * 1_000)
    produce(topic, {0: 5}, timestamps_ms={0: [now - 20_000] * 5})
    query = new_query({topic: {0: 5, 1: 0}})
    query.plan(1, {topic: {0: 5, 1: 0}}, at=now / 1_000 - 10)
    commit(context, group_id=group, checkpoint_location=query.location)
    recreate(topic, 2)
    produce(topic, {0: 9})
    with pytest.raises(
        AirflowFailException, match=f"first record of {topic}-0 is newer than the batch of .* up to offset 5"
    ):
        commit(context, group_id=group, checkpoint_location=query.location)
    # What somebody has looked at and knows better.
    commit(context, group_id=group, offsets={topic: {"0": 5, "1": 0}})
    commit(context, group_id=group, checkpoint_location=query.location)
    assert holds(group) == {0: 5, 1: 0}


def test_a_marker_before_the_position_is_not_taken_for_a_record_newer_than_the_batch(
    make_topic, produce, send_in_transaction, new_query, new_group, broker, context
):
    topic, group = make_topic(1), new_group()
    now = int(time.time() * 1_000)
    old, later = now - 60_000, now - 2_000
    produce(topic, {0: 2}, timestamps_ms={0: [old, later]})
    partition = TopicPartition(topic, 0)
    send_in_transaction(partition, old)
    # The marker comes a little later.
    until(lambda: broker.log_ranges([partition])[partition].end == 4)
    produce(topic, {0: 1}, timestamps_ms={0: [later]})
    query = new_query({topic: {0: 4}})
    query.plan(1, {topic: {0: 4}}, at=now / 1_000 - 30)
    assert commit(context, group_id=group, checkpoint_location=query.location)["after"] == {topic: {"0": 4}}


def test_a_dead_broker_is_an_error_that_airflow_retries(connect, monkeypatch, new_group, context):
    connect("127.0.0.1:1")
    monkeypatch.setattr("airflow_kafka_offsets.hooks.offsets.CALL_TIMEOUT", 1.0)
    with pytest.raises(BrokerUnavailableError, match="127.0.0.1:1"):
        commit(context, group_id=new_group(), offsets={"t": {"0": 1}})
