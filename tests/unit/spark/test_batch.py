"""What a checkpoint says about a batch, without a Spark that wrote it."""

import json

import pytest
from written_query import Query

from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, UsageError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.spark import SparkCheckpoint, batch_ranges, starting_offsets

HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


class Checkpoint(Query):
    def began(self, source, offsets):
        self.write(f"sources/{source}/0", "\0v1\n" + json.dumps(offsets))


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


def a(*ends):
    return {"a": {str(number): end for number, end in enumerate(ends)}}


def ranges(*each, topic="a"):
    return {TopicPartition(topic, number): OffsetRange(*ends) for number, ends in enumerate(each)}


def test_the_batch_before_has_the_next_lower_number_there_is(checkpoint):
    for batch, end in ((7, 3), (9, 5), (12, 8)):
        checkpoint.plan(batch, a(end))
    assert batch_ranges(checkpoint.location, 12) == ranges((5, 8))


def test_the_first_batch_of_a_source_begins_where_spark_noted_it(checkpoint):
    checkpoint.began("0", a(4))
    checkpoint.plan(0, a(9, 2))
    # A partition that came after the first offsets were noted begins at 0.
    assert batch_ranges(checkpoint.location, 0) == ranges((4, 9), (0, 2))


def test_a_source_that_had_nothing_in_the_batch_before_is_at_its_first_offsets(checkpoint):
    checkpoint.began("1", {"b": {"0": 6}})
    checkpoint.plan(0, a(1), "-")
    checkpoint.plan(1, a(1), {"b": {"0": 8}})
    assert batch_ranges(checkpoint.location, 1, source=1) == ranges((6, 8), topic="b")


def test_two_sources_are_told_together_or_one_by_one(checkpoint):
    checkpoint.began("0", a(0))
    checkpoint.began("1", {"b": {"0": 0, "1": 0}})
    checkpoint.plan(0, a(3), {"b": {"0": 0, "1": 2}})
    of_second = ranges((0, 0), (0, 2), topic="b")
    assert batch_ranges(checkpoint.location, 0) == ranges((0, 3)) | of_second
    assert batch_ranges(checkpoint.location, 0, source=1) == of_second


def test_two_sources_of_one_partition_have_a_range_each(checkpoint):
    checkpoint.began("0", a(0))
    checkpoint.began("1", a(3))
    checkpoint.plan(0, a(5), a(5))
    with pytest.raises(UsageError, match="several sources of batch 0 read a-0.* name one with source="):
        batch_ranges(checkpoint.location, 0)
    assert batch_ranges(checkpoint.location, 0, source="0") == ranges((0, 5))
    assert batch_ranges(checkpoint.location, 0, source="1") == ranges((3, 5))


def test_a_pattern_that_matched_no_topic_yet_begins_with_none(checkpoint):
    checkpoint.began("0", {})
    checkpoint.plan(0, {})
    checkpoint.plan(1, a(3))
    assert batch_ranges(checkpoint.location, 0) == {}
    assert batch_ranges(checkpoint.location, 1) == ranges((0, 3))


def test_a_partition_that_is_gone_is_not_in_the_batch(checkpoint):
    checkpoint.plan(4, a(3, 3))
    checkpoint.plan(5, a(7))
    assert batch_ranges(checkpoint.location, 5) == ranges((3, 7))


def test_named_sources_are_told_apart_by_name(checkpoint):
    for batch, lines in ((0, ("x:" + json.dumps(a(1)), "y:0")), (1, ("y:3", "x:" + json.dumps(a(4))))):
        checkpoint.write(f"offsets/{batch}", "\n".join(["v2", HEAD, *lines]))
    assert batch_ranges(checkpoint.location, 1) == ranges((1, 4))
    assert batch_ranges(checkpoint.location, 1, source="x") == ranges((1, 4))
    with pytest.raises(UsageError, match="batch 1 has no offsets of a Kafka source y; its Kafka sources: x"):
        batch_ranges(checkpoint.location, 1, source="y")


@pytest.mark.parametrize("without", [1, 2])
def test_a_source_that_comes_back_begins_at_its_first_offsets_or_where_nobody_knows(checkpoint, without):
    batches = [{"x": 3, "y": 3}, *[{"x": 5}] * without, {"x": 7, "y": 7}]
    for batch, ends in enumerate(batches):
        lines = [f"{source}:{json.dumps({source: {'0': end}})}" for source, end in ends.items()]
        checkpoint.write(f"offsets/{batch}", "\n".join(["v2", HEAD, *lines]))
    checkpoint.began("y", {"y": {"0": 1}})
    last = len(batches) - 1
    of_first, both = ranges((5, 7), topic="x"), ranges((5, 7), topic="x") | ranges((1, 7), topic="y")
    assert batch_ranges(checkpoint.location, last, source="x") == of_first
    if without == 2:
        assert batch_ranges(checkpoint.location, last) == both
        return
    # Seen with Spark 4.2: y from 3, and from 1 when it runs the batch again.
    with pytest.raises(CheckpointError, match="only batch 1 was without source y, so its start in batch 2"):
        batch_ranges(checkpoint.location, last)


def test_a_batch_that_is_not_planned_is_refused(checkpoint):
    checkpoint.plan(0, a(1))
    with pytest.raises(CheckpointError, match=r"offsets/1: does not exist"):
        batch_ranges(checkpoint.location, 1)


def test_a_batch_whose_beginning_was_removed_is_refused(checkpoint):
    checkpoint.plan(3, a(1))
    checkpoint.began("0", a(0))
    with pytest.raises(CheckpointError, match="the batch before it no longer exists.*minBatchesToRetain"):
        batch_ranges(checkpoint.location, 3)


def test_first_offsets_that_are_missing_or_another_sources_are_refused(checkpoint):
    checkpoint.plan(0, a(1))
    with pytest.raises(
        CheckpointError, match=r"sources/0/0: does not exist; expected the start offsets of source 0"
    ):
        batch_ranges(checkpoint.location, 0)
    for text in ("v1\n" + json.dumps(a(1)), "\0v1\n1700000000000"):
        checkpoint.write("sources/0/0", text)
        with pytest.raises(CheckpointFormatError, match=r"sources/0/0: found"):
            batch_ranges(checkpoint.location, 0)


def test_a_topic_that_was_made_anew_is_refused(checkpoint):
    checkpoint.plan(0, a(9))
    checkpoint.plan(1, a(4))
    with pytest.raises(CheckpointError, match=r"batch 1 ends before it begins on a-0 \(a-0: 9 to 4\)"):
        batch_ranges(checkpoint.location, 1)


def test_a_checkpoint_without_kafka_is_refused(checkpoint):
    checkpoint.plan(0, "17", '{"logOffset":0}')
    with pytest.raises(UsageError, match="no offsets of a Kafka source; its Kafka sources: none"):
        batch_ranges(checkpoint.location, 0)


def test_a_query_that_noted_its_first_offsets_is_not_new_any_more(checkpoint):
    checkpoint.began("0", a(5))
    with pytest.raises(CheckpointError, match="no batch; expected a new checkpoint.* remove the directory"):
        starting_offsets("orders", checkpoint=checkpoint.location, topics="a")


def test_parameters_without_an_effect_on_the_source_are_refused(checkpoint):
    wanted = {"checkpoint": checkpoint.location}
    with pytest.raises(UsageError, match=r"^pipeline has no effect") as error:
        starting_offsets(SparkCheckpoint(checkpoint.location), pipeline="orders", **wanted)
    assert error.value.parameter == "pipeline"
    with pytest.raises(UsageError, match=r"^pipeline has no effect: the source is a group"):
        starting_offsets("orders", pipeline="orders", topics="t", **wanted)
    for given in ({"query_source": 0}, {"allow_stateful": True}):
        with pytest.raises(UsageError, match=f"^{next(iter(given))} has no effect"):
            starting_offsets("orders", topics="t", **given, **wanted)
    with pytest.raises(UsageError, match=r"^source='s3a://lake/old': expected a group, or SparkCheckpoint"):
        starting_offsets("s3a://lake/old", topics="t", on_no_commit="earliest", **wanted)
