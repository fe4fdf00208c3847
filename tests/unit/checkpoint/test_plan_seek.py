"""A seek changes the newest offsets alone, or is refused with every reason."""

import pytest
from checkpoint_moves import (
    DISCARD,
    ORDERS_0,
    THREE,
    apply_plan,
    files,
    seek,
    spark_starts,
    truncate,
)

from airflow_kafka_offsets.checkpoint.apply_move import verify_checkpoint
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, CheckpointNotFoundError
from airflow_kafka_offsets.model.offsets import TopicPartition


def test_a_seek_to_where_the_query_stands_changes_nothing(three):
    before = files(three)
    checkpoint_plan = apply_plan(three, seek(three, 7))
    assert (checkpoint_plan.steps, checkpoint_plan.archive) == ((), None)
    assert files(three) == before


def test_a_source_without_kafka_offsets_stays_as_it_is_and_is_named(checkpoint):
    text = 'v1\n{"batchTimestampMs":1}\n{"logOffset":0}\n{"orders":{"0":7}}\n-'
    root = checkpoint({0: text}, [0])
    checkpoint_plan = plan_seek(SparkCheckpoint(str(root)), {"1": {ORDERS_0: 3}})
    apply_plan(root, checkpoint_plan)
    assert checkpoint_plan.notes == ("source 0, 2 has no Kafka offsets and stays as it is",)
    assert (root / "offsets/0").read_text() == text.replace("7", "3")


def test_unfinished_batches_are_removed_newest_first_before_the_offsets_are_written(checkpoint):
    root = checkpoint(THREE | {3: 9, 4: 10}, [0, 1, 2])
    checkpoint_plan = seek(root, **DISCARD)
    assert [step.path for step in checkpoint_plan.steps] == ["offsets/4", "offsets/3", "offsets/2"]
    assert checkpoint_plan.discarded == (3, 4)


def test_an_unfinished_batch_can_be_discarded_without_a_move(begun):
    before = files(begun)
    apply_plan(begun, seek(begun, 7, **DISCARD))
    assert spark_starts(begun) == (2, 2)
    assert before.keys() - files(begun).keys() == {"offsets/3", "offsets/.3.crc"}
    assert files(begun)["offsets/2"] == before["offsets/2"]


def test_what_is_read_back_must_be_what_was_planned(three):
    checkpoint_plan = apply_plan(three, seek(three))
    verify_checkpoint(SparkCheckpoint(str(three)), checkpoint_plan)
    apply_plan(three, seek(three, 4))
    with pytest.raises(CheckpointError, match=r"read back .* archive 0001-seek"):
        verify_checkpoint(SparkCheckpoint(str(three)), checkpoint_plan)


def test_a_query_that_has_not_finished_a_batch_is_refused(checkpoint):
    root = checkpoint({0: 5}, [])
    before = files(root)
    for plan in (lambda: seek(root), lambda: truncate(root, 0, sink="noop")):
        with pytest.raises(CheckpointError, match="no batch has finished, so there is nothing to move"):
            plan()
    assert files(root) == before


def test_a_directory_without_a_checkpoint_is_not_found(tmp_path):
    for plan in (seek, lambda root: truncate(root, 0)):
        with pytest.raises(CheckpointNotFoundError):
            plan(tmp_path)


def test_a_commit_without_offsets_is_refused(checkpoint, assert_refused):
    root = checkpoint(THREE, [0, 1, 2, 3])
    assert_refused(root, seek(root), "found commits/3 without offsets/3: each start of the query")


def test_continuous_mode_is_refused(checkpoint, assert_refused):
    log = 'v1\n\n{"orders":{"0":7}}'
    root = checkpoint({0: log, 1: log}, [0, 1])
    assert_refused(root, seek(root), "batch 1 has no metadata, as in continuous mode")
    assert_refused(root, truncate(root, 0, sink="noop"), "is of continuous mode")


@pytest.mark.parametrize(
    "targets",
    [
        {"0": {TopicPartition("orders", 1): 3}},
        {"0": {ORDERS_0: 3, TopicPartition("orders", 1): 3}},
        {"0": {TopicPartition("paid", 0): 3}},
        {"1": {ORDERS_0: 3}},
    ],
)
def test_partitions_that_the_newest_batch_does_not_have_are_refused(targets, three, assert_refused):
    assert_refused(three, plan_seek(SparkCheckpoint(str(three)), targets), "batch 2 has no offset for ")


@pytest.mark.parametrize(("noted", "at", "refused"), [(1, 7, True), (2, 7, False), (1, 6, False)])
def test_a_frame_that_the_query_uses_twice_is_not_moved_to_two_positions(noted, at, refused, checkpoint):
    # Spark makes one directory for it, and continues at the offsets of its last line.
    root = checkpoint(
        {0: f'v1\n{{"batchTimestampMs":1}}\n{{"orders":{{"0":7}}}}\n{{"orders":{{"0":{at}}}}}'}, [0]
    )
    for source in range(noted):
        (root / f"sources/{source}").mkdir(parents=True)
    apart = plan_seek(SparkCheckpoint(str(root)), {"0": {ORDERS_0: 3}})
    assert ["both continue at the offsets of source 1" in text for text in apart.refusals] == [True] * refused
    together = {"0": {ORDERS_0: 3}, "1": {ORDERS_0: 3}}
    assert plan_seek(SparkCheckpoint(str(root)), together).refusals == ()


def test_an_empty_state_directory_is_no_state(three):
    (three / "state").mkdir()
    assert seek(three).refusals == ()


def test_an_unfinished_batch_is_refused_by_default(begun, assert_refused):
    assert_refused(begun, seek(begun), "batch 3 was begun and not finished: run the query once")
    assert_refused(begun, seek(begun, 7), "batch 3 was begun and not finished: run the query once")


def test_of_several_unfinished_batches_spark_would_run_only_the_newest(checkpoint, assert_refused):
    # As in a copy that was made while the query ran: the files of commits/ first.
    root = checkpoint(THREE | {3: 9, 4: 11, 5: 13}, [0, 1, 2])
    lost = "not finished: put the missing files of commits/ back (Spark would run only batch 5, and never"
    assert_refused(root, seek(root), f"batch 3, 4, 5 was begun and {lost}")


@pytest.mark.parametrize("allow_stateful", [False, True])
def test_an_unfinished_batch_of_a_query_with_state_cannot_be_discarded(allow_stateful, begun, assert_refused):
    (begun / "state/0/0").mkdir(parents=True)
    state = [] if allow_stateful else ["the query keeps state (state/)"]
    assert_refused(
        begun,
        seek(begun, allow_stateful=allow_stateful, **DISCARD),
        *state,
        "the batch cannot be discarded; run the query once",
    )


def test_all_reasons_are_given_at_once(checkpoint, assert_refused):
    root = checkpoint({0: 5, 2: 7, 3: 9}, [0, 2])
    (root / "state/0/0").mkdir(parents=True)
    checkpoint_plan = plan_seek(SparkCheckpoint(str(root)), {"1": {ORDERS_0: 1}})
    assert_refused(
        root, checkpoint_plan, "offsets/1 does not exist", "has no offset for", "keeps state", "was begun"
    )
