"""What real queries leave in their checkpoints, as their groups get it."""

import threading
from pathlib import Path

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


def test_partitions_that_a_topic_gets_later_are_committed_from_the_next_batch_on(
    stream, run, make_topic, produce, location, new_group, commit, grow, kafka_tools
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    run(stream(topic), location)
    grow(topic, 3)
    assert commit(group, location)["after"] == {topic: {"0": 3}}
    run(stream(topic), location)
    assert commit(group, location)["after"] == {topic: {"0": 3, "1": 0, "2": 0}}
    assert [row["lag"] for row in kafka_tools.describe_rows(group)] == [0, 0, 0]


def test_a_query_that_removes_its_history_quickly_can_be_committed_at_any_moment(
    spark, stream, start, make_topic, produce, location, new_group, commit, wait_until
):
    topic, group = make_topic(2), new_group()
    produced, done = [0], threading.Event()
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
    try:
        query = start(stream(topic), location, processingTime="0 seconds")
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")

    def keep_producing():
        while not done.is_set():
            produce(topic, {0: 1})
            produced[0] += 1

    wait_until(lambda: Path(location, "commits", "0").exists())
    producer = threading.Thread(target=keep_producing)
    producer.start()
    try:
        positions = []
        for _ in range(25):
            positions.append(commit(group, location)["after"][topic]["0"])
            # The record that is being acknowledged is in the log already.
            assert positions[-1] <= produced[0] + 1
            batches = [SparkCheckpoint(location).read().batch_id for _ in range(40)]
            assert batches == sorted(batches, key=lambda batch: -1 if batch is None else batch)
    finally:
        done.set()
        producer.join()
    query.processAllAvailable()
    # The query's history was removed meanwhile, and each commit read what was there at its moment.
    assert not Path(location, "offsets", "0").exists()
    assert positions == sorted(positions)
    assert positions[-1] > positions[0]
    assert commit(group, location)["after"] == {topic: {"0": produced[0], "1": 0}}
    query.stop()
