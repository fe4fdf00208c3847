"""Is this the Spark that was asked for, and can its checkpoints be read?"""

import importlib.util
import os
from importlib import metadata
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import TopicPartition

ASKED_FOR = "COMPATIBILITY_SPARK_VERSION"


def offsets(topic, **ends):
    return {TopicPartition(topic, int(name[1:])): end for name, end in ends.items()}


def test_the_spark_that_was_asked_for_runs(spark):
    assert spark.version == os.environ.get(ASKED_FOR, metadata.version("pyspark"))


@pytest.mark.skipif(ASKED_FOR not in os.environ, reason="only the matrix's environments are without Airflow")
def test_there_is_no_airflow():
    assert importlib.util.find_spec("airflow") is None


def test_a_checkpoint_is_read_with_the_batch_that_is_pending(
    stream, start, run, make_topic, produce, location
):
    topic = make_topic(3)
    produce(topic, {0: 5, 1: 2})
    run(stream(topic), location)
    produce(topic, {0: 4})

    def fail(batch, batch_id):
        raise RuntimeError("this batch does not end")

    query = start(stream(topic), location, batch_does=fail, availableNow=True)
    with pytest.raises(Exception, match="this batch does not end"):
        query.awaitTermination(60)
    state = SparkCheckpoint(location).read()
    assert (state.batch_id, state.pending_batch_id) == (0, 1)
    assert state.kafka_offsets == {"0": offsets(topic, p0=5, p1=2, p2=0)}
    run(stream(topic), location)
    state = SparkCheckpoint(location).read()
    assert (state.batch_id, state.pending_batch_id) == (1, None)
    assert state.kafka_offsets == {"0": offsets(topic, p0=9, p1=2, p2=0)}
    assert Path(location, "commits", "1").exists()
