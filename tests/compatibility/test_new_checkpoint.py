"""A query that Spark refuses to start from its checkpoint continues with a new one."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.errors import NoCommitError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import SparkCheckpoint, starting_offsets


@pytest.fixture
def wanted(bootstrap_servers, tmp_path):
    """What starting_offsets gets besides the old checkpoint."""
    options = {"kafka.bootstrap.servers": bootstrap_servers}
    return {"checkpoint": str(tmp_path / "new"), "options": options, "quiet_period": 0}


@pytest.fixture
def written():
    """What the sink has received, and the function for foreachBatch that appends to it."""

    class Written(list):
        def __call__(self, batch, _):
            self.extend((row.topic, row.partition, row.offset) for row in batch.collect())

    return Written()


@pytest.fixture
def records(written):
    return lambda topic, **counts: [
        (topic, int(name[1:]), offset) for name, count in counts.items() for offset in range(count)
    ]


def test_each_record_is_written_once_by_the_old_query_or_by_the_new_one(
    spark, stream, run, make_topic, produce, location, wanted, written, records
):
    topic = make_topic(2)
    produce(topic, {0: 5, 1: 2})
    run(stream(topic), location, batch_does=written)
    produce(topic, {0: 3, 1: 4})
    begin = starting_offsets(SparkCheckpoint(location), spark=spark, **wanted)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 5, "1": 2}}
    run(stream(**begin), wanted["checkpoint"], batch_does=written)
    produce(topic, {0: 1})
    run(stream(topic), wanted["checkpoint"], batch_does=written)
    assert sorted(written) == records(topic, p0=9, p1=6)


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
    with pytest.raises(PlanRefusedError, match="batch 1 was begun and not finished"):
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


def test_a_batch_that_failed_is_refused(
    stream, start, run, make_topic, produce, location, wanted, written, records
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=written)
    produce(topic, {0: 3})

    def fail(batch, batch_id):
        written(batch, batch_id)
        raise RuntimeError("this batch does not end")

    query = start(stream(topic), location, batch_does=fail, availableNow=True)
    with pytest.raises(Exception, match="this batch does not end"):
        query.awaitTermination(60)
    with pytest.raises(PlanRefusedError, match="batch 1 was begun and not finished: the sink may have its"):
        starting_offsets(SparkCheckpoint(location), **wanted)


def test_offsets_that_the_log_no_longer_has_are_refused(
    stream, run, make_topic, produce, bootstrap_servers, location, wanted, written
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=written)
    produce(topic, {0: 5})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    (deleted,) = admin.delete_records([ClientPartition(topic, 0, 4)]).values()
    deleted.result(30)
    old = SparkCheckpoint(location)
    with pytest.raises(
        PlanRefusedError, match=rf"batch 0 of .*{topic}-0 is at 2, .* 4 to 7.* 2 records are lost"
    ):
        starting_offsets(old, **wanted)
    clamped = starting_offsets(old, on_out_of_range="clamp", **wanted)
    assert json.loads(clamped["startingOffsets"]) == {topic: {"0": 4}}


def test_a_topic_that_the_old_query_did_not_read_is_a_decision(
    stream, run, make_topic, produce, location, wanted, written
):
    topic, added = make_topic(1), make_topic(1)
    produce(topic, {0: 2})
    produce(added, {0: 3})
    run(stream(topic), location, batch_does=written)
    both = {**wanted, "topics": [topic, added]}
    with pytest.raises(NoCommitError, match=f"batch 0 of .* has no offset for any partition of {added}"):
        starting_offsets(SparkCheckpoint(location), **both)
    begin = starting_offsets(SparkCheckpoint(location), on_no_commit="earliest", **both)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 2}, added: {"0": 0}}


def test_a_checkpoint_that_counts_on_another_cluster_is_refused(
    stream, run, make_topic, produce, location, wanted, written
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=written)
    old = SparkCheckpoint(location)
    assert starting_offsets(old, **wanted)
    seek = plan_seek(old, {"0": {TopicPartition(topic, 0): 1}})
    apply_checkpoint_plan(old, replace(seek, log_ids=LogIds("another-cluster")), quiet_period=0)
    with pytest.raises(PlanRefusedError, match="is of cluster another-cluster.*FailOverOperator"):
        starting_offsets(old, **wanted)


def test_an_old_query_that_still_runs_is_refused(stream, run, make_topic, produce, location, wanted, written):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=written)
    finished = Path(location, "commits/0")
    # What Spark would write with its next batch, a moment from now.
    later = threading.Timer(0.3, lambda: os.utime(finished))
    later.start()
    try:
        with pytest.raises(PlanRefusedError, match="was written to within the last 3 s: the query is runn"):
            starting_offsets(SparkCheckpoint(location), **{**wanted, "quiet_period": 3})
    finally:
        later.join()


def test_parameters_without_an_effect_are_refused(wanted, location):
    with pytest.raises(UsageError, match=r"^pipeline has no effect") as error:
        starting_offsets(SparkCheckpoint(location), pipeline="orders", **wanted)
    assert error.value.parameter == "pipeline"
    for given in ({"query_source": 0}, {"allow_stateful": True}):
        with pytest.raises(UsageError, match=f"^{next(iter(given))} has no effect"):
            starting_offsets("orders", topics="t", **given, **wanted)
    with pytest.raises(UsageError, match=r"^source='s3a://lake/old': expected a group, or SparkCheckpoint"):
        starting_offsets("s3a://lake/old", topics="t", on_no_commit="earliest", **wanted)
