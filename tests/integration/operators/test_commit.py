import pytest

from airflow_kafka_offsets.errors import BrokerUnavailableError
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


def test_a_dead_broker_is_an_error_that_airflow_retries(connect, monkeypatch, new_group, context):
    connect("127.0.0.1:1")
    monkeypatch.setattr("airflow_kafka_offsets.hooks.offsets.CALL_TIMEOUT", 1.0)
    with pytest.raises(BrokerUnavailableError, match="127.0.0.1:1"):
        commit(context, group_id=new_group(), offsets={"t": {"0": 1}})
