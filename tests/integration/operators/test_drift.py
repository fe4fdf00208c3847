import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import until
from drift_checks import check

from airflow_kafka_offsets.errors import DriftError, UnknownTopicPartitionError
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

DEADLINE = 30.0


@pytest.fixture
def admin(bootstrap_servers):
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def has_logs(broker, *partitions):
    """Whether new partitions can be read."""
    try:
        return bool(broker.log_ranges(partitions))
    except UnknownTopicPartitionError:
        return False


def test_a_topic_that_was_deleted_does_not_hide_the_others_and_is_known_when_it_comes_again(
    checkpoint, topic, make_topic, new_group, commit, context, admin, broker
):
    other, group = make_topic(1), new_group()
    location = checkpoint({topic: {0: 10}, other: {0: 0}})
    commit(group, topic, {0: 10})
    commit(group, other, {0: 0})
    admin.delete_topics([topic])[topic].result(DEADLINE)
    until(lambda: topic not in broker.partitions([topic]))
    names = {"group_id": group, "checkpoint_location": location, "topics": [f"{topic}:0", other]}
    with pytest.raises(AirflowFailException, match="topic gone on 1 of 2"):
        check(context, **names)
    (shown,) = context["ti"].xcoms["return_value"]["pipelines"][0]["groups"]
    assert shown["verdicts"] == {"topic gone": 1, "in step": 1}

    create(admin, topic)
    until(lambda: has_logs(broker, TopicPartition(topic, 0)))
    with pytest.raises(AirflowFailException, match="topic recreated on 1 of 2"):
        check(context, **names)


def test_a_broker_that_does_not_answer_is_retried_unless_something_else_is_wrong(
    checkpoint, topic, new_group, commit, context, connect, monkeypatch
):
    connect("127.0.0.1:1", "dead")
    monkeypatch.setattr("airflow_kafka_offsets.hooks.offsets.CALL_TIMEOUT", 1.0)
    group, location = new_group(), checkpoint({topic: {0: 10}})
    commit(group, topic, {0: 10})
    here = {"group_id": group, "checkpoint_location": location, "topics": f"{topic}:0"}
    with pytest.raises(DriftError, match="127.0.0.1:1") as passing:
        check(context, pipelines=[{**here, "kafka_config_id": "dead"}, here])
    assert passing.value.retriable
    assert [bool(one["error"]) for one in context["ti"].xcoms["return_value"]["pipelines"]] == [True, False]


def create(admin, topic):
    """Create a topic that was just deleted; for a moment Kafka still says that it is there."""
    new = NewTopic(topic, num_partitions=1, replication_factor=1)
    until(lambda: admin.create_topics([new])[topic].exception(DEADLINE) is None, "the topic")
