"""
What a user may not see does not exist for it: what shows that more is there, and what is said if nothing
does.
"""

import logging

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from confluent_kafka import Consumer
from waiting import TaskInstance

from airflow_kafka_offsets.errors import BrokerAuthenticationError, NoCommitError
from airflow_kafka_offsets.kafka.cached_reader import CachedReader
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.readings.positions import group_positions
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen(secured_kafka, make_topic):
    return make_topic(1, on=secured_kafka.plain)


@pytest.fixture(scope="module")
def hidden(secured_kafka, make_topic, produce):
    topic = make_topic(1, on=secured_kafka.plain)
    produce(topic, {0: 2000}, on=secured_kafka.plain)
    return topic


@pytest.fixture
def admin(secured_kafka):
    with OffsetsClient(secured_kafka.admin) as client:
        yield client


@pytest.fixture
def group(new_group, admin, seen, hidden):
    """One that another client has committed, without a word."""
    name = new_group()
    admin.commit(name, {TopicPartition(seen, 0): 0, TopicPartition(hidden, 0): 0})
    return name


@pytest.fixture
def user(secured_kafka, connect, seen, group):
    """A user who may see one topic, and all of the group."""
    config = secured_kafka.user("ann", ("topic", seen, "Read"), ("group", group, "Read"))
    connect(config)
    return config


def run(operator, **parameters):
    return operator(task_id="t", **parameters).execute({"ti": TaskInstance()})


def test_a_checkpoint_shows_a_topic_that_is_hidden(user, group, seen, hidden, new_query, admin):
    query = new_query({seen: {0: 0}, hidden: {0: 5}})
    before = query.files()
    names = {"group_id": group, "checkpoint_location": query.location}
    for task in (
        lambda: run(ConsumerGroupLagSensor, max_lag=0, **names),
        lambda: run(ConsumerGroupLagSensor, max_lag=0, position="checkpoint", **names),
        lambda: run(CommitOffsetsOperator, **names),
        lambda: run(ResetOffsetsOperator, to_offset="latest", quiet_period=0, **names),
    ):
        with pytest.raises(AirflowFailException, match=f"{hidden}.*grant it Describe on the topics"):
            task()
    assert query.files() == before
    assert admin.committed(group, [TopicPartition(seen, 0)])[TopicPartition(seen, 0)].offset == 0


def test_names_show_a_topic_that_is_hidden(user, group, seen, hidden):
    for names in ({"group_id": group, "topics": [seen, hidden]}, {"group_id": {seen: group, hidden: group}}):
        with pytest.raises(AirflowFailException, match=f"{hidden}.*grant it Describe on the topics"):
            run(ConsumerGroupLagSensor, max_lag=0, **names)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_show_a_topic_that_is_hidden(user, secured_kafka, group, seen, hidden, protocol):
    settings = {"bootstrap.servers": secured_kafka.plain, "group.id": group, "log_level": 0}
    reader = Consumer(settings | {"group.protocol": protocol, "enable.auto.commit": False})
    try:
        reader.subscribe([seen, hidden])
        while not reader.assignment():
            reader.poll(0.1)
        with pytest.raises(
            AirflowFailException, match="not authorized to describe|grant it Describe on the topics"
        ):
            run(ConsumerGroupLagSensor, max_lag=0, group_id=group)
    finally:
        reader.close()


def test_our_commits_show_that_they_were_of_more_partitions(user, admin, group, seen, hidden):
    both = {TopicPartition(seen, 0): 0, TopicPartition(hidden, 0): 0}
    admin.commit(group, both, CommitMetadata(dag="orders").text(len(both)))
    says = "had 2 partitions, but this user sees only 1"
    for task in (
        lambda: run(ConsumerGroupLagSensor, max_lag=0, group_id=group),
        lambda: run(ResetOffsetsOperator, group_id=group, to_offset="latest"),
    ):
        with pytest.raises(AirflowFailException, match=says):
            task()
    assert run(ConsumerGroupLagSensor, max_lag=0, group_id=group, topics=seen)["total_lag"] == 0
    with OffsetsClient(user) as client, pytest.raises(BrokerAuthenticationError, match=says):
        group_positions(CachedReader(client), group, TopicScope())


def test_where_nothing_shows_it_the_log_says_once_what_all_topics_are(user, group, seen, caplog):
    caplog.set_level(logging.WARNING)
    with OffsetsClient(user) as client:
        for _ in range(2):
            assert {tp.topic for tp in group_positions(client, group, TopicScope())} == {seen}
        group_positions(client, group, TopicScope.parse(seen))
    assert caplog.text.count("this user sees only the topics that were granted to it") == 1


def test_who_sees_everything_reads_nothing_of_that(secured_kafka, group, seen, hidden, caplog):
    reads_all = secured_kafka.user("bob", ("topic", "*", "Describe"), ("group", "*", "Describe"))
    for config in (reads_all, secured_kafka.admin, {"bootstrap.servers": secured_kafka.plain}):
        with OffsetsClient(config) as client:
            assert {tp.topic for tp in group_positions(client, group, TopicScope())} == {seen, hidden}
    assert "granted" not in caplog.text


@pytest.mark.parametrize(
    ("grants", "error", "says"),
    [
        ((), BrokerAuthenticationError, "GROUP_AUTHORIZATION_FAILED.*grant it Describe on the group"),
        ((("topic", "SEEN", "Describe"),), BrokerAuthenticationError, "grant it Describe on the group"),
        (
            (("group", "GROUP", "Describe"),),
            BrokerAuthenticationError,
            "may see no topic at all: grant it Describe on the topics that the group reads",
        ),
        (
            (("group", "GROUP", "Describe"), ("topic", "OTHER", "Describe")),
            NoCommitError,
            "no committed offsets on the topics that this user may see.*grant the user Describe",
        ),
    ],
    ids=["none", "a topic", "the group", "another topic"],
)
def test_a_right_that_is_missing_is_named_and_not_the_time_that_kafka_keeps_offsets(
    secured_kafka, make_topic, group, seen, grants, error, says
):
    words = {"SEEN": seen, "GROUP": group}
    if any("OTHER" in grant for grant in grants):
        words["OTHER"] = make_topic(1, on=secured_kafka.plain)
    user = secured_kafka.user("eve", *((kind, words[name], right) for kind, name, right in grants))
    with OffsetsClient(user, timeout=10) as client:
        for _ in range(2):
            with pytest.raises(error, match=says) as refused:
                group_positions(client, group, TopicScope())
            assert "forgets" not in str(refused.value)
