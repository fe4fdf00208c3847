"""The commit of the client in the Spark driver's JVM, whose requests are replaced."""

import pytest

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.failures import Failure
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient

TIMED_OUT, DENIED = Failure("REQUEST_TIMED_OUT", "no answer"), Failure("TOPIC_AUTHORIZATION_FAILED", "denied")


def test_a_commit_without_an_answer_for_a_partition_may_be_written(monkeypatch):
    offsets = {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 7}
    failures = dict(zip(offsets, (TIMED_OUT, DENIED), strict=True))
    monkeypatch.setattr(JvmOffsetsClient, "_commit", lambda client, *_: failures)
    monkeypatch.setattr(JvmOffsetsClient, "_explain", lambda *_: BrokerError("no answer"))
    with pytest.raises(BrokerError, match="it is not known whether it was written"):
        object.__new__(JvmOffsetsClient).commit("g", offsets, "text")
