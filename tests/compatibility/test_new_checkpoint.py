"""A query that Spark refuses to start from its checkpoint continues with a new one."""

import json

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.spark import SparkCheckpoint, starting_offsets


@pytest.fixture
def wanted(options, tmp_path):
    """What starting_offsets gets besides the old checkpoint."""
    return {"checkpoint": str(tmp_path / "new"), "options": options, "quiet_period": 0}


def test_each_record_is_written_once_by_the_old_query_or_by_the_new_one(
    spark, stream, run, make_topic, produce, location, wanted
):
    written = []

    def write(batch, _):
        written.extend((row.partition, row.offset) for row in batch.collect())

    topic = make_topic(2)
    produce(topic, {0: 5, 1: 2})
    run(stream(topic), location, batch_does=write)
    produce(topic, {0: 3, 1: 4})
    begin = starting_offsets(SparkCheckpoint(location), spark=spark, **wanted)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 5, "1": 2}}
    run(stream(**begin), wanted["checkpoint"], batch_does=write)
    produce(topic, {0: 1})
    run(stream(topic), wanted["checkpoint"], batch_does=write)
    assert sorted(written) == [*((0, offset) for offset in range(9)), *((1, offset) for offset in range(6))]


def test_spark_refuses_the_changed_query_which_then_starts_without_its_state(
    spark, stream, run, start, make_topic, produce, location, wanted
):
    topic = make_topic(1)
    produce(topic, {0: 4})
    counts = {}

    def totals(batch, _):
        counts.update({row[0]: row["count"] for row in batch.collect()})

    run(stream(topic).groupBy("topic").count(), location, batch_does=totals, mode="update")
    produce(topic, {0: 3})
    changed = stream(topic).groupBy("partition").count()
    query = start(changed, location, batch_does=totals, mode="update", availableNow=True)
    # Which of the two checks of Spark 3.5 is first is chance: the schema's, or that of a stored row.
    with pytest.raises(Exception, match=r"(?i)state.*schema|schema.*state|state format invalidation"):
        query.awaitTermination(60)
    # Spark has planned a batch before it found the other schema.
    with pytest.raises(PlanRefusedError, match="batch 1 was begun and not finished: the sink may have its"):
        starting_offsets(SparkCheckpoint(location), allow_stateful=True, **wanted)
    run(stream(topic).groupBy("topic").count(), location, batch_does=totals, mode="update")
    assert counts == {topic: 7}
    produce(topic, {0: 2})
    with pytest.raises(PlanRefusedError, match="the query keeps state"):
        starting_offsets(SparkCheckpoint(location), **wanted)
    begin = starting_offsets(SparkCheckpoint(location), spark=spark, allow_stateful=True, **wanted)
    changed = stream(**begin).groupBy("partition").count()
    run(changed, wanted["checkpoint"], batch_does=totals, mode="update")
    assert counts == {topic: 7, 0: 2}
