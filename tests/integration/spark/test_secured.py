"""Spark's side needs just the rights that the documentation has for it."""

from __future__ import annotations

import itertools

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rights import each_lacking, is_named, rights_of
from secured_kafka import PASSWORD

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark.listener.listener import committing
from airflow_kafka_offsets.spark.read import read_window

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves sockets to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

NOT_ALLOWED = "(Not authorized to access|Topic authorization failed|TopicAuthorization)"
"""What Spark's own clients say."""


@pytest.fixture(scope="module")
def topic(secured_cluster, make_topic, produce):
    name = make_topic(1, on=secured_cluster.plain)
    produce(name, {0: 3}, on=secured_cluster.plain)
    return name


@pytest.fixture
def held(secured_cluster):
    """held(group) -> what it has committed, as the admin sees it."""

    def look(group):
        with OffsetsClient(secured_cluster.admin) as client:
            return {tuple(tp): commit.offset for tp, commit in client.committed_everywhere(group).items()}

    return look


@pytest.fixture
def read(secured_cluster, spark, topic):
    """read(user) -> the values of two records, as a user's window."""
    window = OffsetWindow({TopicPartition(topic, 0): OffsetRange(1, 3)})

    def values(user):
        options = secured_cluster.spark_options(user["sasl.username"])
        return [bytes(row["value"]) for row in read_window(spark, window, options).collect()]

    return values


@pytest.fixture
def follow(secured_cluster, spark, stream, run, topic, tmp_path):
    """follow(user, group) runs a user's query on a new checkpoint; the group follows it."""
    numbers = itertools.count()

    def query(user, group):
        options = secured_cluster.spark_options(user["sasl.username"])
        options["consumer.commit.groupid"] = group
        with committing(spark, raise_errors=True):
            run(stream(topic, **options), str(tmp_path / str(next(numbers))))

    return query


def test_a_window_is_read_and_a_query_followed_with_the_rights_of_the_table(
    secured_cluster, read, follow, topic, new_group, held, caplog
):
    group = new_group()
    assert read(secured_cluster.user("spark", *rights_of("read_window", "", topic))) == [b"1", b"2"]
    follow(secured_cluster.user("spark", *rights_of("KafkaOffsetCommitterListener", group, topic)), group)
    assert held(group) == {(topic, 0): 3}
    assert PASSWORD not in caplog.text


@pytest.mark.long
def test_a_window_is_not_read_without_one_of_them(secured_cluster, read, topic):
    rights = rights_of("read_window", "", topic)
    user = secured_cluster.user("spark", *rights)
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerError, Py4JError, PySparkException)) as refused:
                read(user)
        if lacking.left is None:
            assert is_named(lacking, str(refused.value))
        else:
            assert refused.match(NOT_ALLOWED)
        assert PASSWORD not in str(refused.value)


@pytest.mark.long
def test_a_query_is_not_followed_without_one_of_them(secured_cluster, follow, topic, new_group, held, caplog):
    group = new_group()
    rights = rights_of("KafkaOffsetCommitterListener", group, topic)
    user = secured_cluster.user("spark", *rights)
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerAuthenticationError, PySparkException)) as refused:
                follow(user, group)
        if lacking.right.resource == "group":
            assert is_named(lacking, str(refused.value))
        else:
            # The query itself fails before there is anything to commit.
            assert refused.match(NOT_ALLOWED)
        assert held(group) == {}
    assert PASSWORD not in caplog.text
