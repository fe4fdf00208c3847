"""Where does a query start, which ranges are in its batches, and how does a job commit them by itself?"""

import json
import threading

import pytest
from confluent_kafka import Producer

from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
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


def test_a_batch_begins_where_the_one_before_it_ended_also_when_it_is_run_again(
    stream, start, run, make_topic, produce, location, seen
):
    topic = make_topic(2)
    produce(topic, {0: 2})
    run(stream(topic), location, batch_does=seen)
    produce(topic, {0: 3})

    def fail(batch, batch_id):
        seen(batch, batch_id)
        raise RuntimeError("this batch does not end")

    query = start(stream(topic), location, batch_does=fail, availableNow=True)
    with pytest.raises(Exception, match="this batch does not end"):
        query.awaitTermination(60)
    assert seen.pop(1) == ranges(topic, p0=(2, 5), p1=(0, 0))
    produce(topic, {0: 4, 1: 1})
    run(stream(topic), location, batch_does=seen)
    assert seen == {
        0: ranges(topic, p0=(0, 2), p1=(0, 0)),
        1: ranges(topic, p0=(2, 5), p1=(0, 0)),
        2: ranges(topic, p0=(5, 9), p1=(0, 1)),
    }


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
