"""Spark's side needs just the rights that the documentation has for it."""

from __future__ import annotations

import pytest
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


def test_a_window_is_read_with_the_rights_of_the_table_and_not_without_one(secured_cluster, spark, topic):
    rights = rights_of("read_window", "", topic)
    user = secured_cluster.user("spark", *rights)
    options = secured_cluster.spark_options(user["sasl.username"])
    window = OffsetWindow({TopicPartition(topic, 0): OffsetRange(1, 3)})

    def values():
        return [bytes(row["value"]) for row in read_window(spark, window, options).collect()]

    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerError, PySparkException)) as refused:
                values()
        if lacking.left is None:
            assert is_named(lacking, str(refused.value))
        else:
            assert refused.match(NOT_ALLOWED)
        assert PASSWORD not in str(refused.value)
    assert values() == [b"1", b"2"]


def test_the_listener_commits_with_the_rights_of_the_table_and_not_without_one(
    secured_cluster, stream, run, topic, new_group, held, tmp_path, spark, caplog
):
    group = new_group()
    rights = rights_of("KafkaOffsetCommitterListener", group, topic)
    user = secured_cluster.user("spark", *rights)
    options = secured_cluster.spark_options(user["sasl.username"])
    options["consumer.commit.groupid"] = group
    for number, lacking in enumerate(each_lacking(rights)):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((BrokerAuthenticationError, PySparkException)) as refused:
                with committing(spark, raise_errors=True):
                    run(stream(topic, **options), str(tmp_path / str(number)))
        if lacking.right.resource == "group":
            assert is_named(lacking, str(refused.value))
        else:
            # The query itself fails before there is anything to commit.
            assert refused.match(NOT_ALLOWED)
        assert held(group) == {}
    with committing(spark, raise_errors=True):
        run(stream(topic, **options), str(tmp_path / "checkpoint"))
    assert held(group) == {(topic, 0): 3}
    assert PASSWORD not in caplog.text
