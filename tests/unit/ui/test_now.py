"""What several groups, sources and partitions are together."""

import json
import time
from datetime import datetime, timezone
from typing import get_args

import pytest
from checkpoint_moves import TimelessFileSystem, interrupt
from memory_clients import open_client
from written_query import QUERY_ID

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import BrokerUnavailableError, DriftError, UnknownTopicPartitionError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.drift import DriftReport, NewestBatch
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.headroom import Headroom, headrooms_json
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.partition_state import PartitionState, Verdict
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_checkpoint_seek
from airflow_kafka_offsets.ui.now import MOVE_UNFINISHED, WORST_FIRST, PipelineNow, _drift

TP = TopicPartition("t", 0)


def report(group, checkpoint, committed, start=0):
    row = PartitionState(TP, committed, LogRange(start, 100), checkpoint=checkpoint)
    return DriftReport(group, NewestBatch("/data"), (row,), datetime.now(tz=timezone.utc))


def test_the_worst_verdict_of_several_groups_counts():
    behind, lost = report("a", 20, 10), report("b", 20, 20, start=50)

    assert list(behind.drift) == ["group behind"]
    assert [_drift(each)["verdict"] for each in ([behind, lost], [lost, behind])] == ["records lost"] * 2
    assert _drift([report("c", 20, 20)])["verdict"] == "in step"


def test_each_verdict_of_drift_has_a_place():
    assert {*WORST_FIRST} == {*get_args(Verdict)} - {"in step"} | {MOVE_UNFINISHED}


def test_a_headroom_that_is_not_known_does_not_hide_the_least_that_is():
    found = [Headroom("unknown"), Headroom("time", 50.0), Headroom("time", 90.0)]

    assert headrooms_json(found) == {"headroom": 50.0, "headroom_state": "unknown"}


def now(broker, selection, checkpoint=None):
    return PipelineNow(broker, selection, checkpoint, time.monotonic() + 10).read()


def test_each_source_of_a_query_has_its_own_lag(broker, make_topic, produce, new_query):
    topic = make_topic(1)
    produce(topic, {0: 10})
    query = new_query({topic: {0: 4}}, {topic: {0: 10}})
    found = now(broker, GroupSelection(), SparkCheckpoint(query.location))
    assert found["totals"]["lag"] == 6
    assert (found["partitions"]["group"], found["state"]) == (["source:0", "source:1"], None)


def test_the_headroom_beside_records_without_a_position_is_not_known(broker, make_topic, produce, new_query):
    topic = make_topic(2)
    produce(topic, {0: 10, 1: 10})
    totals = now(broker, GroupSelection(), SparkCheckpoint(new_query({topic: {0: 4}}).location))["totals"]
    assert (totals["lag"], totals["uncounted"], totals["headroom_state"]) == (6, 10, "unknown")


@pytest.mark.parametrize("named", ["group", "checkpoint", "both"])
def test_a_position_beyond_the_log_end_has_no_lag_of_0(
    named, broker, make_topic, produce, new_query, new_group
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    broker.commit(group, {TopicPartition(topic, 0): 11})
    checkpoint = None if named == "group" else SparkCheckpoint(new_query({topic: {0: 11}}).location)
    found = now(broker, GroupSelection(None if named == "checkpoint" else group), checkpoint)
    totals = found["totals"]
    assert (totals["lag"], totals["unknown_lag"], found["partitions"]["lag"]) == (None, 1, [None])
    if named == "both":
        assert found["drift"]["verdict"] == "topic recreated"
    else:
        assert f"is beyond the log end in {topic}-0" in found["problems"][0]


def test_a_checkpoint_alone_is_not_compared_with_a_topic_that_was_created_again(
    memory, broker, make_topic, produce, new_query, new_group
):
    topic, group = make_topic(1), new_group()
    query = new_query({topic: {0: 4}})
    query.plan(1, {topic: {0: 4}}, at=time.time() - 600)
    produce(topic, {0: 10})
    found = now(broker, GroupSelection(), SparkCheckpoint(query.location))
    assert found["partitions"]["lag"] == [None]
    assert "the topic was deleted and created again" in found["problems"][0]
    # If the query is in real-time mode, or the clock of a producer is ahead.
    assert "allow_new_cluster=True to the group_id that this pipeline names" in found["problems"][0]
    made = CommitMetadata(query=QUERY_ID, batch=1, cluster=memory.cluster_id)
    broker.commit(group, {TopicPartition(topic, 0): 4}, json.dumps(made.as_json()))
    found = now(broker, GroupSelection(group), SparkCheckpoint(query.location))
    assert (found["drift"]["verdict"], found["partitions"]["lag"]) == ("in step", [6])


def test_a_checkpoint_alone_is_not_compared_with_fewer_partitions(broker, make_topic, produce, new_query):
    topic = make_topic(1)
    produce(topic, {0: 10})
    checkpoint = SparkCheckpoint(new_query({topic: {0: 4, 1: 4}}).location)
    with pytest.raises(UnknownTopicPartitionError, match=f"{topic}-1 is not on the broker"):
        now(broker, GroupSelection(), checkpoint)


def test_a_checkpoint_alone_is_not_compared_with_the_logs_of_another_cluster(
    memory, broker, make_topic, produce, new_query
):
    topic, at = make_topic(1), datetime.now(tz=timezone.utc)
    produce(topic, {0: 10})
    checkpoint = SparkCheckpoint(new_query({topic: {0: 4}}).location)
    plan = plan_checkpoint_seek(broker, checkpoint, Place("offset", 2), now=at)
    apply_pipeline(broker, plan, CommitMetadata(at=int(at.timestamp())), checkpoint, 0)
    memory.cluster_id = "another"
    with open_client(memory) as elsewhere, pytest.raises(DriftError, match="leads to cluster another"):
        now(elsewhere, GroupSelection(), checkpoint)


def test_an_unknown_headroom_is_at_most_what_the_time_limit_leaves(broker, make_topic, produce, new_group):
    settings = {"retention.ms": "3600000", "retention.bytes": "1000000"}
    topic, group = make_topic(1, settings), new_group()
    produce(topic, {0: 10}, {0: [int(time.time() * 1000) - 3_000_000] * 10})
    broker.commit(group, {TopicPartition(topic, 0): 4})
    found = now(broker, GroupSelection(group))
    totals, partitions = found["totals"], found["partitions"]
    assert (totals["headroom_state"], partitions["headroom_state"]) == ("unknown", ["unknown"])
    assert totals["headroom"] == partitions["headroom"][0] == pytest.approx(600, abs=60)
    assert "raise retention.ms" in found["remedies"]["expiring"]


def test_no_problem_names_an_address_of_a_broker(broker, make_topic, produce, new_group, monkeypatch):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    broker.commit(group, {TopicPartition(topic, 0): 4})
    lost = BrokerUnavailableError("no usable answer from b1.lake:9092")  # an address that it advertises
    monkeypatch.setattr(broker, "topic_settings", lambda topics: dict.fromkeys(topics, lost))
    found = now(broker, GroupSelection(group))
    assert found["problems"] == [f"the retention of topic {topic} is not known: the broker does not answer"]


def test_a_group_of_which_topics_leaves_out_all_is_not_read(broker, make_topic, produce, new_group):
    topic, other, groups = make_topic(1), make_topic(1), (new_group(), new_group())
    produce(topic, {0: 10})
    broker.commit(groups[0], {TopicPartition(topic, 0): 4})
    named = GroupSelection.parse(dict(zip((topic, other), groups, strict=True)), [topic])
    assert now(broker, named)["totals"]["lag"] == 6


def test_during_an_unfinished_move_no_remedy_says_to_commit(
    broker, make_topic, produce, new_query, new_group
):
    tp, group = TopicPartition(make_topic(1), 0), new_group()
    produce(tp.topic, {0: 10})
    broker.commit(group, {tp: 4})
    query = new_query({tp.topic: {0: 6}})
    checkpoint, selection = SparkCheckpoint(query.location), GroupSelection(group)
    behind = now(broker, selection, checkpoint)
    interrupt(query.root, plan_seek(checkpoint, {"0": {tp: 3}}, CheckpointPolicy()))
    during = now(broker, selection, checkpoint)

    assert (behind["partitions"]["verdict"], during["partitions"]["verdict"]) == (["group behind"],) * 2
    assert "moves the group to the checkpoint" in behind["remedies"]["group behind"]
    assert during["remedies"]["group behind"].startswith("finish or undo move 0001-seek")
    assert during["drift"]["verdict"] == MOVE_UNFINISHED


def test_before_the_first_batch_nothing_agrees_with_a_group_without_commits(
    broker, make_topic, produce, new_query, new_group
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    query = new_query({topic: {0: 4}})
    for file in (query.root / "commits").iterdir():
        file.unlink()
    found = now(broker, GroupSelection(group), SparkCheckpoint(query.location))
    assert (found["totals"]["partitions"], found["drift"]) == (0, None)


@pytest.mark.parametrize("has_group", [True, False])
def test_a_batch_without_a_file_time_has_the_age_of_its_plan(
    has_group, broker, make_topic, produce, new_query, new_group
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    broker.commit(group, {TopicPartition(topic, 0): 4})
    query = new_query({topic: {0: 6}})
    query.plan(1, {topic: {0: 6}}, at=time.time() - 600)
    checkpoint = SparkCheckpoint(query.location, fs=TimelessFileSystem())
    found = now(broker, GroupSelection(group if has_group else None), checkpoint)
    assert found["checkpoint"]["age"] == pytest.approx(600, abs=60)


def test_the_headroom_is_not_measured_from_the_record_that_the_group_is_at(
    broker, make_topic, produce, new_query, new_group, monkeypatch
):
    tp, group = TopicPartition(make_topic(1), 0), new_group()
    produce(tp.topic, {0: 10})
    broker.commit(group, {tp: 4})
    settings = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
    monkeypatch.setattr(broker, "topic_settings", lambda topics: dict.fromkeys(topics, settings))
    read_times = broker.record_times
    # The record that Spark reads next is not read in time.
    monkeypatch.setattr(
        broker, "record_times", lambda at, **how: read_times(at, **how) if at == {tp: 4} else {}
    )
    found = now(broker, GroupSelection(group), SparkCheckpoint(new_query({tp.topic: {0: 6}}).location))
    assert found["partitions"]["time_lag"] != [None]
    assert found["partitions"]["headroom_state"] == ["unknown"]
