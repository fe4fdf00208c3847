"""Where does a query start, which ranges are in its batches, and how does a job commit them by itself?"""

from __future__ import annotations

import json
import threading

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.errors import (
    CheckpointError,
    NoCommitError,
    PlanRefusedError,
    UsageError,
    WindowMismatchError,
)
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark import batch_ranges, commit_ranges, starting_offsets


def ranges(topic, **each):
    """ranges(topic, p0=(0, 5)) -> the range of partition 0."""
    return {TopicPartition(topic, int(name[1:])): OffsetRange(*ends) for name, ends in each.items()}


@pytest.fixture
def produce_anew(bootstrap_servers):
    """
    Writes like produce. A producer that knows the topic would look for its new partition only minutes later.
    """

    def send(topic, records):
        producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        for partition, count in records.items():
            for number in range(count):
                producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def seen(location):
    """What batch_ranges says in each batch, and the function for foreachBatch that asks it."""

    class Seen(dict):
        def __call__(self, batch, batch_id):
            self[batch_id] = batch_ranges(location, batch_id)
            self.rows = batch.count()

    return Seen()


def test_a_batch_begins_where_the_one_before_it_ended(stream, run, make_topic, produce, location, seen):
    topic = make_topic(3)
    produce(topic, {0: 4, 1: 2})
    run(stream(topic), location, batch_does=seen)
    produce(topic, {1: 3})
    run(stream(topic), location, batch_does=seen)
    assert seen == {
        0: ranges(topic, p0=(0, 4), p1=(0, 2), p2=(0, 0)),
        1: ranges(topic, p0=(4, 4), p1=(2, 5), p2=(0, 0)),
    }


def test_the_first_batch_begins_where_the_query_was_told_to_start(
    stream, run, make_topic, produce, location, seen
):
    topic = make_topic(1)
    produce(topic, {0: 9})
    run(stream(topic, startingOffsets=json.dumps({topic: {"0": 7}})), location, batch_does=seen)
    assert seen == {0: ranges(topic, p0=(7, 9))}


def test_a_batch_that_failed_has_the_same_ranges_again(
    stream, start, run, make_topic, produce, location, seen
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=seen)
    produce(topic, {0: 3})

    def fail(batch, batch_id):
        seen(batch, batch_id)
        raise RuntimeError("this batch does not end")

    query = start(stream(topic), location, batch_does=fail, availableNow=True)
    with pytest.raises(Exception, match="this batch does not end"):
        query.awaitTermination(60)
    assert seen.pop(1) == ranges(topic, p0=(2, 5))
    produce(topic, {0: 4})
    run(stream(topic), location, batch_does=seen)
    assert seen[1] == ranges(topic, p0=(2, 5))
    assert seen[2] == ranges(topic, p0=(5, 9))


def test_a_partition_that_was_added_begins_at_its_log_start(
    stream, run, make_topic, produce, location, seen, grow, produce_anew
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=seen)
    grow(topic, 2)
    produce_anew(topic, {0: 1, 1: 6})
    run(stream(topic), location, batch_does=seen)
    assert seen[1] == ranges(topic, p0=(2, 3), p1=(0, 6))
    assert seen.rows == 7


def test_an_added_partition_that_lost_records_begins_at_its_log_start_where_spark_may_skip_them(
    spark, stream, run, make_topic, produce, location, grow, produce_anew, options, delete_records
):
    topic = make_topic(1)
    produce(topic, {0: 2})
    told = {}

    def ask(batch, batch_id):
        told[batch_id] = batch_ranges(location, batch_id, options=lossy, spark=spark)

    lossy = {**options, "failOnDataLoss": "false"}
    run(stream(topic, failOnDataLoss="false"), location, batch_does=ask)
    grow(topic, 2)
    produce_anew(topic, {1: 6})
    delete_records(topic, {1: 4})
    run(stream(topic, failOnDataLoss="false"), location, batch_does=ask)
    assert told[1] == ranges(topic, p0=(2, 2), p1=(4, 6))


def test_two_sources_are_told_together_or_one_by_one(stream, run, make_topic, produce, location):
    first, second = make_topic(1), make_topic(2)
    produce(first, {0: 3})
    produce(second, {1: 2})
    told = []

    def ask(batch, batch_id):
        told.append(batch_ranges(location, batch_id))
        told.append(batch_ranges(location, batch_id, source=1))

    run(stream(first).union(stream(second)), location, batch_does=ask)
    of_second = ranges(second, p0=(0, 0), p1=(0, 2))
    assert told == [ranges(first, p0=(0, 3)) | of_second, of_second]


def test_two_sources_of_one_partition_have_a_range_each(stream, run, make_topic, produce, location):
    topic = make_topic(1)
    produce(topic, {0: 5})
    later = stream(topic, startingOffsets=json.dumps({topic: {"0": 3}}))
    run(stream(topic).union(later), location)
    with pytest.raises(
        UsageError, match=f"several sources of batch 0 read {topic}-0.* name one with source="
    ):
        batch_ranges(location, 0)
    assert batch_ranges(location, 0, source="0") == ranges(topic, p0=(0, 5))
    assert batch_ranges(location, 0, source="1") == ranges(topic, p0=(3, 5))


def test_a_new_checkpoint_goes_on_exactly_where_the_group_stands(
    spark, stream, run, make_topic, produce, location, new_group, broker, options, seen, grow, produce_anew
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5, 1: 4})
    broker.commit(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 4})
    grow(topic, 3)
    produce_anew(topic, {2: 2})
    begin = starting_offsets(group, checkpoint=location, topics=topic, options=options, spark=spark)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 3, "1": 4, "2": 0}}
    assert json.loads(begin["assign"]) == {topic: [0, 1, 2]}
    run(stream(**begin), location, batch_does=seen)
    assert seen == {0: ranges(topic, p0=(3, 5), p1=(4, 4), p2=(0, 2))}
    assert seen.rows == 4
    # From its first batch on the checkpoint says where to go on, and subscribe takes in new partitions.
    grow(topic, 4)
    produce_anew(topic, {3: 1})
    run(stream(topic), location, batch_does=seen)
    assert seen[1] == ranges(topic, p0=(5, 5), p1=(4, 4), p2=(2, 2), p3=(0, 1))


def test_a_checkpoint_that_has_batches_is_refused_with_what_moves_it(
    stream, run, make_topic, location, new_group, options
):
    topic = make_topic(1)
    run(stream(topic), location)
    with pytest.raises(
        CheckpointError, match="found batches up to 0; expected a new checkpoint.*ResetOffsetsOperator"
    ):
        starting_offsets(new_group(), checkpoint=location, topics=topic, options=options)


def test_a_topic_without_a_commit_is_a_decision(make_topic, produce, location, new_group, options):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    wanted = {"checkpoint": location, "topics": topic, "options": options}
    with pytest.raises(NoCommitError, match=f"group '{group}' has no offset for any partition of {topic}"):
        starting_offsets(group, **wanted)
    earliest = starting_offsets(group, on_no_commit="earliest", **wanted)
    latest = starting_offsets(group, on_no_commit="latest", **wanted)
    assert json.loads(earliest["startingOffsets"]) == {topic: {"0": 0}}
    assert json.loads(latest["startingOffsets"]) == {topic: {"0": 5}}


def test_a_group_outside_the_log_is_clamped_only_when_asked(
    make_topic, produce, location, new_group, broker, options, caplog
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    broker.commit(group, {TopicPartition(topic, 0): 8})
    wanted = {"checkpoint": location, "topics": topic, "options": options}
    with pytest.raises(PlanRefusedError, match=f"{topic}-0 is at 8, the log holds 0 to 5"):
        starting_offsets(group, **wanted)
    clamped = starting_offsets(group, on_out_of_range="clamp", **wanted)
    assert json.loads(clamped["startingOffsets"]) == {topic: {"0": 5}}
    assert "nearer end of the log" in caplog.text


def test_a_store_says_where_to_start_as_well(spark, make_topic, produce, location, options):
    topic = make_topic(2)
    produce(topic, {0: 5, 1: 1})

    class Store:
        def load(self, pipeline):
            return {TopicPartition(topic, 0): 2} if pipeline == "flights" else {}

    begin = starting_offsets(Store(), pipeline="flights", checkpoint=location, options=options, spark=spark)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 2, "1": 0}}
    with pytest.raises(NoCommitError, match="the store has no offsets for it"):
        starting_offsets(Store(), pipeline="trains", checkpoint=location, options=options, spark=spark)


def test_an_added_partition_that_is_named_alone_starts_at_its_log_start(
    spark, make_topic, produce, location, new_group, broker, options
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5, 1: 3})
    broker.commit(group, {TopicPartition(topic, 0): 5})
    begin = starting_offsets(
        group, topics=f"{topic}:1", checkpoint=location, options=options, spark=spark, on_no_commit="latest"
    )
    assert json.loads(begin["startingOffsets"]) == {topic: {"1": 0}}


def test_a_job_commits_what_it_has_read_from_its_own_threads(
    stream, run, make_topic, produce, location, new_group, broker, options, monkeypatch
):
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "flights")
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 3, 1: 1})
    written = []

    def work(batch, batch_id):
        batch.count()
        commit = threading.Thread(
            target=lambda: written.append(
                commit_ranges(
                    group, batch_ranges(location, batch_id), options=options, query="q-1", batch=batch_id
                )
            )
        )
        commit.start()
        commit.join(60)

    run(stream(topic), location, batch_does=work)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=work)
    assert [len(offsets) for offsets in written] == [2, 1]
    held = broker.committed(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert [commit.offset for commit in held.values()] == [5, 1]
    said = json.loads(held[TopicPartition(topic, 0)].metadata)
    assert {name: said[name] for name in ("tool", "query", "batch", "dag")} == {
        "tool": "commit_ranges",
        "query": "q-1",
        "batch": 1,
        "dag": "flights",
    }


def test_the_same_ranges_are_committed_once_and_late_ones_not_at_all(
    make_topic, produce, new_group, broker, options
):
    topic, group = make_topic(1), new_group()
    partition = TopicPartition(topic, 0)
    produce(topic, {0: 9})
    assert commit_ranges(group, ranges(topic, p0=(0, 3)), options=options) == {partition: 3}
    assert commit_ranges(group, ranges(topic, p0=(3, 6)), options=options, fenced=False) == {partition: 6}
    for fenced in (True, False):
        assert commit_ranges(group, ranges(topic, p0=(3, 6)), options=options, fenced=fenced) == {}
    for late in ((0, 3), (7, 9)):
        with pytest.raises(WindowMismatchError, match="found 6"):
            commit_ranges(group, ranges(topic, p0=late), options=options)
    assert broker.committed(group, [partition])[partition].offset == 6


def test_a_group_without_a_commit_is_at_the_beginning_unless_that_is_refused(
    make_topic, produce, new_group, options
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 9})
    first = ranges(topic, p0=(4, 6))
    with pytest.raises(WindowMismatchError, match="found nothing"):
        commit_ranges(group, first, options=options, on_no_commit="fail", fenced=False)
    # A window says by itself whether there was a commit.
    with pytest.raises(WindowMismatchError, match="found nothing"):
        commit_ranges(group, OffsetWindow(first), options=options, fenced=False)
    assert commit_ranges(group, first, options=options, fenced=False) == {TopicPartition(topic, 0): 6}


def test_ranges_of_another_cluster_and_of_another_query_are_not_committed(
    make_topic, produce, new_group, options
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    with pytest.raises(PlanRefusedError, match="the ranges end beyond the log"):
        commit_ranges(group, ranges(topic, p0=(0, 4)), options=options)
    commit_ranges(group, ranges(topic, p0=(0, 1)), options=options, query="q-1", fenced=False)
    with pytest.raises(PlanRefusedError, match="two queries in one group"):
        commit_ranges(group, ranges(topic, p0=(1, 3)), options=options, query="q-2", fenced=False)
