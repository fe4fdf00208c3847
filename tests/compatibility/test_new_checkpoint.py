"""A query that Spark refuses to start from its checkpoint continues with a new one."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.errors import NoCommitError, PlanRefusedError
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import SparkCheckpoint, starting_offsets


@pytest.fixture
def wanted(options, tmp_path):
    """What starting_offsets gets besides the old checkpoint."""
    return {"checkpoint": str(tmp_path / "new"), "options": options, "quiet_period": 0}


@pytest.fixture
def topic(make_topic, stream, run, produce, location):
    """A topic with one partition, of which the query of ``old`` has read 2 records."""
    name = make_topic(1)
    produce(name, {0: 2})
    run(stream(name), location)
    return name


@pytest.fixture
def old(topic, location):
    """The old query's checkpoint."""
    return SparkCheckpoint(location)


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
    with pytest.raises(Exception, match=r"(?i)state.*schema|schema.*state"):
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


def test_offsets_that_the_log_no_longer_has_are_refused(topic, old, produce, delete_records, wanted):
    produce(topic, {0: 5})
    delete_records(topic, {0: 4})
    with pytest.raises(
        PlanRefusedError, match=rf"batch 0 of .*{topic}-0 is at 2, .* 4 to 7.* 2 records are lost"
    ):
        starting_offsets(old, **wanted)
    clamped = starting_offsets(old, on_out_of_range="clamp", **wanted)
    assert json.loads(clamped["startingOffsets"]) == {topic: {"0": 4}}


def test_a_topic_that_the_old_query_did_not_read_is_a_decision(topic, old, make_topic, produce, wanted):
    added = make_topic(1)
    produce(added, {0: 3})
    both = {**wanted, "topics": [topic, added]}
    with pytest.raises(NoCommitError, match=f"batch 0 of .* has no offset for any partition of {added}"):
        starting_offsets(old, **both)
    begin = starting_offsets(old, on_no_commit="earliest", **both)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 2}, added: {"0": 0}}


def test_a_checkpoint_that_counts_on_another_cluster_is_refused(topic, old, wanted):
    assert starting_offsets(old, **wanted)
    seek = plan_seek(old, {"0": {TopicPartition(topic, 0): 1}})
    apply_checkpoint_plan(old, replace(seek, log_ids=LogIds("another-cluster")), quiet_period=0)
    with pytest.raises(PlanRefusedError, match="is of cluster another-cluster.*FailOverOperator"):
        starting_offsets(old, **wanted)


def test_an_old_query_that_still_runs_is_refused(old, location, wanted):
    finished = Path(location, "commits/0")
    # What Spark would write with its next batch, a moment from now.
    later = threading.Timer(0.3, lambda: os.utime(finished))
    later.start()
    try:
        with pytest.raises(PlanRefusedError, match="was written to within the last 3 s: the query is runn"):
            starting_offsets(old, **{**wanted, "quiet_period": 3})
    finally:
        later.join()
