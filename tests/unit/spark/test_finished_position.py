"""Where a query with a new checkpoint continues: at the newest committed batch of the old one."""

from pathlib import Path
from typing import Any

import pytest
from checkpoint_moves import DISCARD, ORDERS_0, apply_plan, seek

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, MoveUnfinishedError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition
from airflow_kafka_offsets.spark.starting import finished_position

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{}}\n'
TWO_SOURCES = HEAD + '{"orders":{"0":7}}\n{"refunds":{"0":3}}'


def position(root: Path, *args: Any, **allowed: Any) -> tuple[int, Offsets]:
    return finished_position(SparkCheckpoint(str(root)), *args, **allowed)


def test_the_position_is_the_end_of_the_newest_committed_batch(three):
    assert position(three) == position(three, "0") == (2, {ORDERS_0: 7})


def test_a_pending_batch_is_refused_until_it_is_finished_or_discarded(begun):
    with pytest.raises(PlanRefusedError, match="batch 3 was begun and not finished: the sink may have"):
        position(begun)
    apply_plan(begun, seek(begun, 7, **DISCARD))
    assert position(begun) == (2, {ORDERS_0: 7})


def test_several_sources_are_refused_unless_one_is_named(checkpoint):
    root = checkpoint({0: TWO_SOURCES}, [0])
    with pytest.raises(UsageError, match=r"several Kafka sources \(0, 1\).*name one with query_source=") as e:
        position(root)
    assert e.value.parameter == "query_source"
    assert position(root, "1") == (0, {TopicPartition("refunds", 0): 3})
    with pytest.raises(UsageError, match="query_source='2': batch 0 of .* no offsets .* sources: 0, 1") as e:
        position(root, "2")
    assert e.value.parameter == "query_source"


def test_another_source_needs_no_name(checkpoint):
    root = checkpoint({0: HEAD + '{"logOffset":0}\n{"orders":{"0":7}}'}, [0])
    assert position(root) == (0, {ORDERS_0: 7})
    root = checkpoint({1: HEAD + '{"logOffset":0}'}, [0, 1])
    with pytest.raises(UsageError, match="batch 1 has no Kafka offsets"):
        position(root)


def test_a_query_with_state_is_refused_unless_it_may_start_without(three):
    (three / "state/0").mkdir(parents=True)
    with pytest.raises(PlanRefusedError, match=r"keeps state \(state/\).*allow_stateful=True"):
        position(three)
    assert position(three, allow_stateful=True) == (2, {ORDERS_0: 7})


def test_an_unfinished_move_is_refused(begun):
    original = (begun / "offsets/2").read_bytes()
    apply_plan(begun, seek(begun, **DISCARD), made_by=CommitMetadata(token="run"))
    # As if it had been interrupted before its last step.
    (begun / "offsets/2").write_bytes(original)
    for done in begun.glob("_kafka_offsets/*/done*"):
        done.unlink()
    with pytest.raises(MoveUnfinishedError, match="0001-seek .*was begun and not finished"):
        position(begun)


def test_a_commit_without_its_offsets_is_refused(checkpoint):
    with pytest.raises(PlanRefusedError, match="found commits/3 without offsets/3"):
        position(checkpoint({0: 5, 1: 6}, [0, 1, 3]))


def test_a_query_without_a_finished_batch_is_refused(checkpoint):
    with pytest.raises(CheckpointError, match="no batch has finished"):
        position(checkpoint({0: 5}, []))
