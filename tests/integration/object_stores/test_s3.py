"""Spark keeps its checkpoint on S3, and everything that reads and moves it works there."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek, plan_truncate, plan_undo
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_spark_goes_on_from_where_a_seek_and_an_undo_and_a_truncation_say(
    query, opened, s3, make_topic, produce
):
    topic, location = make_topic(2), s3.new_location()
    produce(topic, {0: 4, 1: 4})
    query(topic, location)
    produce(topic, {0: 2})
    print(query(topic, location))
    spark = opened(location)
    print(spark.read())
    import time

    t = time.time()
    n = len(s3.faults.requests)
    apply_checkpoint_plan(spark, plan_seek(spark, {"0": {TopicPartition(topic, 0): 3}}), quiet_period=0)
    print(time.time() - t, "\n".join(map(str, s3.faults.requests[n:])))
    print(query(topic, location))
    assert 0
