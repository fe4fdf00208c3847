"""Where a new checkpoint starts to read: at a group, at a store's offsets, or where an old query ended."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from memory_kafka import SERVERS
from written_query import Query

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.errors import CheckpointError, NoCommitError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import SparkCheckpoint, starting_offsets

OPTIONS = {"kafka.bootstrap.servers": SERVERS}


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "checkpoint")


def test_a_topic_without_a_commit_is_a_decision(make_topic, produce, location, new_group):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    wanted = {"checkpoint": location, "topics": topic, "options": OPTIONS}
    with pytest.raises(NoCommitError, match=f"group '{group}' has no offset for any partition of {topic}"):
        starting_offsets(group, **wanted)
    earliest = starting_offsets(group, on_no_commit="earliest", **wanted)
    latest = starting_offsets(group, on_no_commit="latest", **wanted)
    assert json.loads(earliest["startingOffsets"]) == {topic: {"0": 0}}
    assert json.loads(latest["startingOffsets"]) == {topic: {"0": 5}}


def test_a_group_outside_the_log_is_clamped_only_when_asked(
    make_topic, produce, location, new_group, broker, caplog
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    broker.commit(group, {TopicPartition(topic, 0): 8})
    wanted = {"checkpoint": location, "topics": topic, "options": OPTIONS}
    with pytest.raises(PlanRefusedError, match=f"{topic}-0 is at 8, the log holds 0 to 5"):
        starting_offsets(group, **wanted)
    clamped = starting_offsets(group, on_out_of_range="clamp", **wanted)
    assert json.loads(clamped["startingOffsets"]) == {topic: {"0": 5}}
    assert "nearer end of the log" in caplog.text


@pytest.mark.parametrize(
    ("made_on", "found"),
    [
        (CommitMetadata(run="r", cluster="another-cluster"), "is of cluster another-cluster"),
        (CommitMetadata(run="r", topic="b" * 22), "was deleted and created again"),
    ],
)
def test_a_group_that_counts_on_other_logs_is_refused(
    make_topic, produce, location, new_group, broker, made_on, found
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    broker.commit(group, {TopicPartition(topic, 0): 3}, made_on.text())
    with pytest.raises(PlanRefusedError, match=f"{found}.*reset the group with allow_new_cluster=True"):
        starting_offsets(group, checkpoint=location, topics=topic, options=OPTIONS)


def test_a_store_says_where_to_start_as_well(make_topic, produce, location):
    topic = make_topic(2)
    produce(topic, {0: 5, 1: 1})

    class Store:
        def load(self, pipeline):
            return {TopicPartition(topic, 0): 2} if pipeline == "flights" else {}

    begin = starting_offsets(Store(), pipeline="flights", checkpoint=location, options=OPTIONS)
    assert json.loads(begin["startingOffsets"]) == {topic: {"0": 2, "1": 0}}
    with pytest.raises(NoCommitError, match="the store has no offsets for it"):
        starting_offsets(Store(), pipeline="trains", checkpoint=location, options=OPTIONS)


def test_an_added_partition_that_is_named_alone_starts_at_its_first_record(
    make_topic, produce, location, new_group, broker, delete_records
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5, 1: 3})
    broker.commit(group, {TopicPartition(topic, 0): 5})
    how = {"topics": f"{topic}:1", "checkpoint": location, "options": OPTIONS, "on_no_commit": "latest"}
    assert json.loads(starting_offsets(group, **how)["startingOffsets"]) == {topic: {"1": 0}}
    delete_records(topic, {1: 2})
    with pytest.raises(PlanRefusedError, match="-1 is at 0, the log holds 2 to 3.*with 2 records lost"):
        starting_offsets(group, **how)
    begin = starting_offsets(group, **how, on_out_of_range="clamp")
    assert json.loads(begin["startingOffsets"]) == {topic: {"1": 2}}


def test_a_checkpoint_that_has_batches_is_refused_with_what_moves_it(make_topic, location, new_group):
    topic = make_topic(1)
    Query(Path(location)).run(0, {topic: {0: 0}})
    with pytest.raises(
        CheckpointError, match="found batches up to 0; expected a new checkpoint.*ResetOffsetsOperator"
    ):
        starting_offsets(new_group(), checkpoint=location, topics=topic, options=OPTIONS)


# Where an old query ended


@pytest.fixture
def wanted(tmp_path):
    """What starting_offsets gets besides the old checkpoint."""
    return {"checkpoint": str(tmp_path / "new"), "options": OPTIONS, "quiet_period": 0}


@pytest.fixture
def topic(make_topic, produce, location):
    """A topic with one partition, of which the query of ``old`` has read 2 records."""
    name = make_topic(1)
    produce(name, {0: 2})
    Query(Path(location)).run(0, {name: {0: 2}})
    return name


@pytest.fixture
def old(topic, location):
    """The old query's checkpoint."""
    return SparkCheckpoint(location)


def test_offsets_that_the_log_no_longer_has_are_refused(topic, old, produce, delete_records, wanted):
    produce(topic, {0: 5})
    delete_records(topic, {0: 4})
    with pytest.raises(
        PlanRefusedError, match=rf"batch 0 of .*{topic}-0 is at 2, .* 4 to 7.* 2 records lost"
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
    later = threading.Timer(0.1, lambda: os.utime(finished))
    later.start()
    try:
        with pytest.raises(PlanRefusedError, match="was written to within the last 0.5 s: the query is runn"):
            starting_offsets(old, **{**wanted, "quiet_period": 0.5})
    finally:
        later.join()
