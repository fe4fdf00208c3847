"""A recovery whose user lacks a right is refused before its first write."""

from __future__ import annotations

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def secured(secured_kafka, make_topic, produce):
    """Two topics on a broker with ACLs."""
    topics = [make_topic(1, on=secured_kafka.plain) for _ in range(2)]
    for topic in topics:
        produce(topic, {0: 10}, on=secured_kafka.plain)
    return secured_kafka, topics


@pytest.mark.parametrize("missing", ["group", "topic"])
def test_a_right_that_is_missing_is_found_before_the_first_write(
    missing, secured, new_group, new_query, context, monkeypatch
):
    kafka, (orders, paid) = secured
    group = new_group()
    query = new_query({orders: {0: 8}, paid: {0: 8}})
    grants = [("group", group, "Read"), ("topic", orders, "Read"), ("topic", paid, "Read")]
    lost = grants[0] if missing == "group" else grants[2]
    rights = [
        (kind, name, "Describe") if grant == lost else grant for grant in grants for kind, name, _ in [grant]
    ]
    user = kafka.user("mover", *rights)

    def connect(config):
        connection = {"conn_type": "kafka", "extra": config}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))

    connect(user)
    names = {"group_id": group, "checkpoint_location": query.location}
    before = query.files()
    reset = ResetOffsetsOperator(task_id="reset", to_offset="earliest", quiet_period=0, **names)
    with pytest.raises(AirflowFailException, match=rf"grant it Read on the {missing}.*nothing was changed"):
        reset.execute(context)
    assert query.files() == before
    with pytest.raises(AirflowFailException, match=rf"grant it Read on the {missing}.*nothing was changed"):
        CommitOffsetsOperator(task_id="commit", **names).execute(context)
    connect({"bootstrap.servers": kafka.plain})
    assert kafka_commits(kafka.plain, group, [orders, paid]) == [None, None]
    connect(user)
    kafka.grant(user, lost)
    assert reset.execute(context)["verified"]
    assert kafka_commits(kafka.plain, group, [orders, paid]) == [0, 0]


def kafka_commits(servers, group, topics):
    with OffsetsClient({"bootstrap.servers": servers}) as client:
        found = client.committed(group, [TopicPartition(topic, 0) for topic in topics])
    return [commit and commit.offset for _, commit in sorted(found.items())]
