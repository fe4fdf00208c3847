"""What does real Spark read after its checkpoint was moved?"""

import shutil
import threading
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.log import kafka_offsets
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition

NOON_MS = 1_767_268_800_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
READ = {0: 9, 1: 5, 2: 7}
"""Where the query stands that the tests move, after its batches 0, 1 and 2."""
DISCARD = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)


@pytest.fixture(scope="module")
def in_kafka(broker):
    """in_kafka(topic, {partition: offset}) -> all that the logs hold from there on, as Spark names it."""

    def records(topic, starts):
        ranges = broker.log_ranges(TopicPartition(topic, partition) for partition in starts)
        return [
            (topic, tp.partition, offset)
            for tp, log_range in ranges.items()
            for offset in range(starts[tp.partition], log_range.end)
        ]

    return records


@pytest.fixture(scope="module")
def read(stream, run):
    """read(topic, location) -> {batch id: its records as (topic, partition, offset)}, to the logs' ends."""

    def to_the_end(topic, location, **options):
        batches = {}
        run(stream(topic, **options), location, batch_does=_collect_into(batches))
        return batches

    return to_the_end


@pytest.fixture(scope="module")
def write():
    """write(frame, location, format, **options): a query into another sink, to the logs' ends."""

    def to_the_end(frame, location, sink, **options):
        writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", str(location))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60), "the query did not end"
        finally:
            query.stop()

    return to_the_end


@pytest.fixture(scope="module")
def topic(make_topic):
    return make_topic(3, {"retention.ms": "-1"})


@pytest.fixture(scope="module")
def three_batches(topic, produce, read, in_kafka, tmp_path_factory):
    """
    The checkpoint of a query that has read its topic up to READ, in the batches 0 to 2; 6 records are unread.

    The records of batch N are of N hours after noon, one a minute.
    """
    location = tmp_path_factory.mktemp("plain") / "checkpoint"
    counts = ({0: 4, 1: 3, 2: 3}, {0: 2, 1: 2}, {0: 3, 2: 4}, {0: 4, 2: 2})
    for hour, count in enumerate(counts):
        times = {
            partition: [NOON_MS + hour * HOUR_MS + minute * MINUTE_MS for minute in range(number)]
            for partition, number in count.items()
        }
        produce(topic, count, times)
        if hour < 3:
            assert list(read(topic, str(location))) == [hour]
    assert len(in_kafka(topic, READ)) == 6
    return location


@pytest.fixture
def plain(three_batches, location):
    """A checkpoint like that of three_batches, for one test alone."""
    return _copy(three_batches, location)


@pytest.fixture(scope="module")
def one_begun(three_batches, topic, stream, start, tmp_path_factory):
    """The checkpoint of three_batches after a fourth batch failed, which was to read 3 of the 6 records."""
    from pyspark.errors import StreamingQueryException

    def fail(frame, batch_id):
        raise RuntimeError("the disk is full")

    location = _copy(three_batches, tmp_path_factory.mktemp("pending") / "checkpoint")
    frame = stream(topic, maxOffsetsPerTrigger=3)
    with pytest.raises(StreamingQueryException):
        start(frame, location, batch_does=fail, availableNow=True).awaitTermination(60)
    assert SparkCheckpoint(location).read().pending_batch_id == 3
    return location


@pytest.fixture
def interrupted(one_begun, location):
    """A checkpoint like that of one_begun, for one test alone."""
    return _copy(one_begun, location)


# Seek


def test_of_several_sources_only_the_named_one_is_moved(
    spark, stream, run, topic, three_batches, make_topic, produce, in_kafka, location, tmp_path
):
    from pyspark.sql import functions as f

    other, batches = make_topic(2), {}
    produce(other, {0: 4, 1: 3})
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a line\n")
    lines = spark.readStream.text(str(tmp_path / "files"))
    lines = lines.select(f.col("value").alias("topic"), f.lit(0).alias("partition"), f.lit(0).alias("offset"))
    columns = ("topic", "partition", "offset")
    frame = stream(topic).select(*columns).union(lines)
    frame = frame.union(stream(other, maxOffsetsPerTrigger=4).select(*columns))
    run(frame, location, batch_does=_collect_into(batches))
    # With a batch before the newest, Spark asks the source of the files for that one's range when it starts.
    assert list(batches) == [0, 1]
    everything = [
        *in_kafka(topic, dict.fromkeys(range(3), 0)),
        *in_kafka(other, {0: 0, 1: 0}),
        ("a line", 0, 0),
    ]
    assert _records(batches) == sorted(everything)

    plan = seek(location, other, {0: 1}, source="2")
    assert plan.notes == ("source 1 has no Kafka offsets and stays as it is",)
    batches.clear()
    run(frame, location, batch_does=_collect_into(batches))
    assert batches == {2: in_kafka(other, {0: 1, 1: 3})}


# Sinks


def test_a_file_sink_holds_the_records_of_a_seek_back_twice_and_loses_none(
    spark, stream, topic, three_batches, write, in_kafka, location, tmp_path
):
    out = str(tmp_path / "out")
    frame = stream(topic).select("topic", "partition", "offset")
    write(frame, location, "parquet", path=out)
    everything = in_kafka(topic, dict.fromkeys(range(3), 0))
    assert _rows(spark.read.parquet(out)) == everything
    seek(location, topic, {0: 3, 2: 8})
    write(frame, location, "parquet", path=out)
    again = in_kafka(topic, {0: 3, 1: 5, 2: 8})
    assert _rows(spark.read.parquet(out)) == sorted(everything + again)


# State


@pytest.fixture(scope="module")
def count(stream, run):
    """count(topic, location) -> {partition: records that the query has counted so far}, at the logs' ends."""

    def to_the_end(topic, location, **options):
        counted = {}

        def keep(frame, batch_id):
            counted.update({row["partition"]: row["count"] for row in frame.collect()})

        frame = stream(topic, **options).groupBy("partition").count()
        run(frame, location, batch_does=keep, mode="complete")
        return counted

    return to_the_end


@pytest.fixture(scope="module")
def counting(three_batches, topic, count, tmp_path_factory):
    """The checkpoint of a query that has counted all records, in several batches."""
    location = tmp_path_factory.mktemp("stateful") / "checkpoint"
    assert count(topic, str(location), maxOffsetsPerTrigger=10) == {0: 13, 1: 5, 2: 9}
    newest = SparkCheckpoint(str(location)).read().batch_id
    assert newest is not None
    assert newest >= 2
    return location


@pytest.fixture
def stateful(counting, location):
    """A checkpoint like that of counting, for one test alone."""
    return _copy(counting, location)


def test_a_query_with_state_that_may_be_moved_counts_the_records_of_a_seek_back_twice(
    topic, stateful, count, in_kafka
):
    seek(stateful, topic, {0: 4}, CheckpointPolicy(allow_stateful=True))
    again = len(in_kafka(topic, {0: 4}))
    assert again == 9
    assert count(topic, stateful) == {0: 13 + again, 1: 5, 2: 9}


def test_a_query_with_state_counts_exactly_after_a_truncate(topic, stateful, count, in_kafka):
    ends = _ends(stateful, 0)
    truncate(stateful, 0, CheckpointPolicy(idempotent_sink=True))
    # There is something to count again, and it comes in another number of batches than at first.
    assert len(in_kafka(topic, ends)) > 10
    assert count(topic, stateful) == {0: 13, 1: 5, 2: 9}
    assert max(SparkCheckpoint(stateful).batches("commits")) == 1


def test_a_query_with_state_counts_exactly_after_a_truncate_to_before_a_snapshot_of_its_state(
    make_topic, produce, count, location
):
    topic = make_topic(1)
    produce(topic, {0: 6})
    assert count(topic, location, maxOffsetsPerTrigger=2) == {0: 6}
    for store in Path(location, "state", "0").glob("[01]"):
        for version in (2, 3):
            # What Spark's maintenance writes, each minute, of the newest version: the state as a whole. Here
            # a
            # batch changes all of it, and both files have one form.
            shutil.copy(store / f"{version}.delta", store / f"{version}.snapshot")
    truncate(location, 0, CheckpointPolicy(idempotent_sink=True))
    assert count(topic, location) == {0: 6}
    produce(topic, {0: 1})
    # Spark loads what the last run has left behind.
    assert count(topic, location) == {0: 7}


# A batch that was begun and not finished


def test_a_seek_is_refused_while_a_batch_is_unfinished_and_done_after_one_run_has_finished_it(
    topic, interrupted, read, in_kafka
):
    before, ends = _files(interrupted), _ends(interrupted, 3)
    with pytest.raises(PlanRefusedError, match="batch 3 was begun and not finished: run the query once"):
        seek(interrupted, topic, {0: 2})
    assert _files(interrupted) == before
    batches = read(topic, interrupted)
    assert batches[3] == _between(topic, READ, ends)
    assert batches[4] == in_kafka(topic, ends)
    seek(interrupted, topic, {0: 2})
    assert read(topic, interrupted) == {5: in_kafka(topic, {0: 2, 1: 5, 2: 9})}


@pytest.fixture(scope="module")
def filed(stream, topic, three_batches, write, tmp_path_factory):
    """(checkpoint, directory) of a query that has written all records into files, in several batches."""
    directory = tmp_path_factory.mktemp("filed")
    location, out = directory / "checkpoint", directory / "out"
    write(stream(topic, maxOffsetsPerTrigger=20).select("offset"), location, "json", path=str(out))
    return location, str(out)


def test_an_unfinished_batch_that_the_file_sink_has_recorded_is_not_discarded(filed, topic, location):
    whole, out = filed
    _copy(whole, location)
    newest = SparkCheckpoint(location).read().batch_id
    # As after a crash between the sink's own commit and Spark's.
    _forget_commit(location, newest)
    before = _files(location)
    with pytest.raises(PlanRefusedError, match=f"has recorded batch {newest} .* would skip it"):
        seek(location, topic, {0: 2}, CheckpointPolicy("discard", "file", sink_location=out))
    assert _files(location) == before


# Undo


def test_an_unfinished_batch_comes_back_and_is_run_with_its_old_range(topic, interrupted, read, in_kafka):
    before, ends = _files(interrupted), _ends(interrupted, 3)
    seek(interrupted, topic, {0: 2}, DISCARD)
    restore(interrupted)
    assert _files(interrupted) == before
    assert read(topic, interrupted) == {3: _between(topic, READ, ends), 4: in_kafka(topic, ends)}


def test_the_query_reads_from_the_offsets_of_a_seek_forward_and_back_and_of_its_restore(
    topic, plain, read, in_kafka
):
    seek(plain, topic, {0: 11, 2: 0})
    assert read(topic, plain) == {3: in_kafka(topic, {0: 11, 1: 5, 2: 0})}
    assert restore(plain).kind == "restore"
    assert read(topic, plain) == {4: in_kafka(topic, READ)}


def test_a_discarded_batch_gives_its_id_to_the_next_one_and_does_not_come_back_after_that(
    topic, interrupted, read, in_kafka
):
    seek(interrupted, topic, {0: 2}, DISCARD)
    assert read(topic, interrupted) == {3: in_kafka(topic, {0: 2, 1: 5, 2: 7})}
    restore(interrupted)
    # In the partitions that the seek has not moved, the query stays where it is.
    assert read(topic, interrupted) == {4: in_kafka(topic, {**READ, 2: 9})}


def test_the_query_reads_again_what_a_truncate_discards_and_after_its_restore_what_is_new(
    topic, plain, read, in_kafka
):
    truncate(plain, 0, CheckpointPolicy(idempotent_sink=True))
    # The id is below the newest one that there was before.
    assert read(topic, plain) == {1: in_kafka(topic, {0: 4, 1: 3, 2: 3})}
    restore(plain)
    assert read(topic, plain) == {2: in_kafka(topic, READ)}


# A query that runs


def test_a_running_query_is_not_moved_and_goes_on(
    stream, start, make_topic, produce, in_kafka, location, wait_until
):
    topic, batches, done = make_topic(2), {}, threading.Event()
    query = start(
        stream(topic), location, batch_does=_collect_into(batches), processingTime="300 milliseconds"
    )

    def keep_producing():
        while not done.is_set():
            produce(topic, {0: 1, 1: 1})

    producer = threading.Thread(target=keep_producing)
    producer.start()
    try:
        wait_until(lambda: len(batches) > 2)
        checkpoint = SparkCheckpoint(location)
        plans = []

        def planned_between_two_batches():
            plans.append(plan_seek(checkpoint, {"0": {TopicPartition(topic, 0): 0}}))
            return not plans[-1].refusals

        wait_until(planned_between_two_batches)
        with pytest.raises(PlanRefusedError, match="the query is running; stop it first"):
            apply_checkpoint_plan(checkpoint, plans[-1], quiet_period=2)
    finally:
        done.set()
        producer.join()
    assert not Path(location, "_kafka_offsets").exists()
    query.processAllAvailable()
    assert query.isActive
    query.stop()
    assert _records(batches) == in_kafka(topic, {0: 0, 1: 0})


def seek(location, topic, offsets, policy=None, *, source="0"):
    checkpoint = SparkCheckpoint(location)
    targets = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    return _apply(checkpoint, plan_seek(checkpoint, {source: targets}, policy))


def truncate(location, batch_id, policy):
    checkpoint = SparkCheckpoint(location)
    return _apply(checkpoint, plan_truncate(checkpoint, batch_id, policy))


def restore(location):
    checkpoint = SparkCheckpoint(location)
    return _apply(checkpoint, plan_checkpoint_restore(checkpoint))


def _apply(checkpoint, plan):
    # The query has ended: there is nothing to wait for.
    apply_checkpoint_plan(checkpoint, plan, quiet_period=0)
    return plan


def _collect_into(batches):
    def collect(frame, batch_id):
        assert batch_id not in batches, f"batch {batch_id} came twice"
        batches[batch_id] = _rows(frame)

    return collect


def _rows(frame):
    return sorted(tuple(row) for row in frame.select("topic", "partition", "offset").collect())


def _records(batches):
    return sorted(record for records in batches.values() for record in records)


def _between(topic, starts, ends):
    return [
        (topic, partition, offset)
        for partition in starts
        for offset in range(starts[partition], ends[partition])
    ]


def _ends(location, batch_id):
    """Return the offsets in a batch's file: {partition: offset} of the query's only source."""
    line = Path(location, "offsets", str(batch_id)).read_text().splitlines()[2]
    offsets = kafka_offsets(line)
    assert offsets is not None
    return {tp.partition: offset for tp, offset in sorted(offsets.items())}


def _files(location):
    """Return what the batches' files hold; Hadoop's checksums beside them are not needed."""
    return {
        str(path.relative_to(location)): path.read_bytes()
        for directory in ("offsets", "commits")
        for path in Path(location, directory).iterdir()
        if not path.name.startswith(".")
    }


def _forget_commit(location, batch_id):
    Path(location, "commits", str(batch_id)).unlink()
    Path(location, "commits", f".{batch_id}.crc").unlink()


def _copy(whole, location):
    shutil.copytree(whole, location)
    return str(location)
