"""Without a right no gate opens where a headroom is asked for."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from waiting import deferred, end_of, reading_of

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.integration


def gate(group, **parameters):
    return ConsumerGroupLagSensor(task_id="gate", group_id=group, **{"min_headroom": "PT6H"} | parameters)


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_right_that_is_missing_fails_the_gate_at_once(
    secured_kafka, make_topic, produce, group, connect, context, deferrable
):
    topic = make_topic(1, on=secured_kafka.plain)
    produce(topic, {0: 1}, on=secured_kafka.plain)
    user = secured_kafka.user("ann", ("topic", topic, "Read"), ("group", group, "Read"))
    with OffsetsClient(user) as client:
        client.commit(group, {TopicPartition(topic, 0): 0})
    connect(user)
    says = f"settings of topic '{topic}'.*grant it DescribeConfigs on the topics"
    with pytest.raises(AirflowFailException, match=says):
        gate(group, topics=topic, deferrable=deferrable).execute(context)
    secured_kafka.grant(user, ("topic", topic, "DescribeConfigs"))
    assert reading_of(gate(group, topics=topic))[0]
    if deferrable:  # a right that is revoked during the wait ends it too
        trigger = deferred(gate(group, topics=topic, min_headroom="P30D", deferrable=True), context)
        secured_kafka.revoke(user, ("topic", topic, "DescribeConfigs"))
        event = end_of(trigger)
        assert event["status"] == "failed"
        assert "grant it DescribeConfigs on the topics" in event["message"]
