"""What real queries leave in their checkpoints, as their groups get it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

NOON_MS = 1_767_268_800_000


def test_the_commit_names_the_query_and_its_last_batch(
    stream, run, make_topic, produce, location, new_group, commit, says
):
    topic, group = make_topic(), new_group()
    produce(topic, {0: 10, 1: 7})
    query = run(stream(topic, maxOffsetsPerTrigger=6), location)
    assert query.lastProgress.batchId >= 2
    commit(group, location)
    said = says(group)
    assert abs(said.pop("at") - time.time()) < 60
    assert said.pop("cluster")
    assert said.pop("topic")
    assert said == {"query": query.id, "batch": query.lastProgress.batchId, "move": 0, "partitions": 3}


def test_a_batch_without_data_of_a_stateful_query_is_committed_like_any_other(
    stream, run, make_topic, produce, location, new_group, commit, says
):
    from pyspark.sql import functions as f

    topic, group = make_topic(1, {"retention.ms": "-1"}), new_group()
    produce(topic, {0: 4}, {0: [NOON_MS + 60_000 * minute for minute in range(4)]})
    minutes = f.window("timestamp", "1 minute")
    frame = stream(topic).withWatermark("timestamp", "1 second").groupBy(minutes).count()
    run(frame, location)
    with_data, without = (json.loads(_lines(location, batch)[2]) for batch in (0, 1))
    assert with_data == without == {topic: {"0": 4}}
    commit(group, location, offsets={topic: {"0": 4}})
    assert commit(group, location)["changed"] == 0
    # It was sent all the same: Kafka counts the days of a quiet group from the last commit.
    assert says(group)["batch"] == 1


def test_a_pattern_takes_in_topics_that_are_made_later(
    stream, run, make_topic, produce, location, new_group, commit
):
    first, group = make_topic(1), new_group()
    produce(first, {0: 3})
    # Two patterns in place of a wide one: the broker holds topics of other tests.
    second = make_topic(2)
    run(stream(subscribePattern=f"^{first}$"), location)
    assert commit(group, location)["after"] == {first: {"0": 3}}
    produce(second, {1: 2})
    run(stream(subscribePattern=f"^({first}|{second})$"), location)
    receipt = commit(group, location)
    assert receipt["before"] == {first: {"0": 3}, second: {"0": None, "1": None}}
    assert receipt["after"] == {first: {"0": 3}, second: {"0": 0, "1": 2}}


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


def test_a_source_of_another_kind_between_two_of_kafka_is_left_out(
    spark, stream, run, make_topic, produce, location, tmp_path, new_group, commit
):
    first, second, group = make_topic(1), make_topic(1), new_group()
    produce(first, {0: 2})
    produce(second, {0: 5})
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a line\n")
    lines = spark.readStream.text(str(tmp_path / "files"))
    texts = [stream(topic).selectExpr("CAST(value AS STRING) AS value") for topic in (first, second)]
    run(texts[0].union(lines).union(texts[1]), location)
    assert len(_lines(location, 0)) == 2 + 3
    assert commit(group, location)["after"] == {first: {"0": 2}, second: {"0": 5}}


def test_a_batch_that_failed_is_not_committed_and_its_retry_is(
    stream, start, run, make_topic, produce, location, new_group, commit, holds
):
    from pyspark.errors import StreamingQueryException

    topic, group, written = make_topic(1), new_group(), {}
    produce(topic, {0: 10})

    def write(frame, batch_id):
        # Written, and failed after that: what the batch did is there, and it must run again.
        written[batch_id] = [row.offset for row in frame.select("offset").collect()]
        if batch_id == 1 and not retried:
            raise RuntimeError("the disk is full")

    retried = False
    query = start(stream(topic, maxOffsetsPerTrigger=4), location, batch_does=write, availableNow=True)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    state = SparkCheckpoint(location).read()
    assert (state.batch_id, state.pending_batch_id) == (0, 1)
    first = commit(group, location)
    assert holds(group) == {(topic, 0): 4}

    retried = True
    produce(topic, {0: 3})
    run(stream(topic), location, batch_does=write)
    second = commit(group, location)
    assert holds(group) == {(topic, 0): 13}
    assert second["before"] == first["after"]
    assert sorted(offset for batch in written.values() for offset in batch) == list(range(13))
    assert len(written[1]) == 4


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


def _lines(location, batch):
    return Path(location, "offsets", str(batch)).read_text().splitlines()
