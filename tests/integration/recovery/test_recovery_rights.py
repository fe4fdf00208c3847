"""A recovery whose user lacks a right is refused before its first write."""

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration


def test_a_right_that_is_missing_on_one_of_two_topics_is_found_before_the_first_write(
    secured_kafka, make_topic, produce, new_group, new_query, context, monkeypatch
):
    kafka, group = secured_kafka, new_group()
    orders, paid = make_topic(1, on=kafka.plain), make_topic(1, on=kafka.plain)
    for topic in (orders, paid):
        produce(topic, {0: 10}, on=kafka.plain)
    query = new_query({orders: {0: 8}, paid: {0: 8}})
    user = kafka.user(
        "mover", ("group", group, "Read"), ("topic", orders, "Read"), ("topic", paid, "Describe")
    )
    connection = {"conn_type": "kafka", "extra": user}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    names = {"group_id": group, "checkpoint_location": query.location}
    before = query.files()
    reset = ResetOffsetsOperator(task_id="reset", to_offset="earliest", quiet_period=0, **names)
    with pytest.raises(AirflowFailException, match="grant it Read on the topic.*nothing was changed"):
        reset.execute(context)
    assert query.files() == before
    with pytest.raises(AirflowFailException, match="grant it Read on the topic.*nothing was changed"):
        CommitOffsetsOperator(task_id="commit", **names).execute(context)
    assert kafka_commits(kafka.plain, group, [orders, paid]) == [None, None]
    kafka.grant(user, ("topic", paid, "Read"))
    assert reset.execute(context)["verified"]
    assert kafka_commits(kafka.plain, group, [orders, paid]) == [0, 0]


def kafka_commits(servers, group, topics):
    with OffsetsClient({"bootstrap.servers": servers}) as client:
        found = client.committed(group, [TopicPartition(topic, 0) for topic in topics])
    return [commit and commit.offset for _, commit in sorted(found.items())]
