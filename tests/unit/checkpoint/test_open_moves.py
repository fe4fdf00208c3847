"""A move that was interrupted is taken up again, unless the query has run since."""

from dataclasses import replace

import pytest
from checkpoint_moves import (
    DISCARD,
    ORDERS_0,
    apply_plan,
    files,
    kept_by,
    offset_of,
    restore,
    seek,
    sparks_own,
)
from written_query import NEW_QUERY_ID, Query

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds


def test_an_interrupted_move_is_taken_up_again_with_its_archive_and_undone_in_one(begun):
    spark = SparkCheckpoint(str(begun))
    original = files(begun)
    apply_plan(begun, seek(begun, **DISCARD), made_by=CommitMetadata(token="run"))
    # As if it had been interrupted before its last step.
    (begun / "offsets/2").write_bytes(original["offsets/2"])
    kept = kept_by(spark, "run")
    assert kept is not None

    checkpoint_plan = apply_plan(
        begun, kept.resume(seek(begun, **DISCARD)), made_by=CommitMetadata(token="run")
    )

    assert (checkpoint_plan.resumes, checkpoint_plan.archive, checkpoint_plan.discarded) == (
        True,
        "0001-seek",
        (3,),
    )
    assert [archive.name for archive in ArchivedMoves(spark)] == ["0001-seek"]
    assert offset_of(begun) == 3
    apply_plan(begun, restore(begun))
    assert sparks_own(files(begun)) == sparks_own(original)


def test_a_move_is_not_taken_up_again_after_the_query_has_run(three, checkpoint):
    apply_plan(three, seek(three), made_by=CommitMetadata(token="run"))
    checkpoint({3: 8}, [3])
    kept = kept_by(SparkCheckpoint(str(three)), "run")
    assert kept is not None
    checkpoint_plan = kept.resume(seek(three))
    assert (checkpoint_plan.resumes, checkpoint_plan.archive) == (False, "0002-seek")


def test_an_unfinished_restore_that_has_put_a_pending_batch_back_is_still_found(begun):
    spark = SparkCheckpoint(str(begun))
    apply_plan(begun, seek(begun, **DISCARD))
    apply_plan(begun, restore(begun))
    # As if it had been interrupted before its end.
    (begun / "_kafka_offsets/0002-restore/done").unlink()
    (begun / "_kafka_offsets/0001-seek/undone").unlink()
    found = ArchivedMoves(spark).unfinished()
    assert found is not None
    assert found.name == "0002-restore"
    assert apply_plan(begun, restore(begun, "0001-seek")).archive == "0002-restore"
    assert ArchivedMoves(spark).unfinished() is None


def test_the_rest_of_a_move_is_not_carried_out_once_the_query_has_begun_a_batch(begun):
    original = files(begun)
    apply_plan(begun, seek(begun, **DISCARD))
    (begun / "_kafka_offsets/0001-seek/done").unlink()
    (begun / "offsets/2").write_bytes(original["offsets/2"])
    rest = seek(begun, **DISCARD)
    assert rest.resumes
    (begun / "offsets/3").write_bytes(original["offsets/3"])
    with pytest.raises(PlanRefusedError, match="has changed since the plan was made"):
        apply_plan(begun, rest)
    assert offset_of(begun) == 7


def test_the_rest_of_a_move_has_what_was_there_before_its_first_try(three):
    apply_plan(three, seek(three, 3))
    (three / "_kafka_offsets/0001-seek/done").unlink()
    assert offset_of(three) == 3
    assert seek(three, 3).before == {"0": {ORDERS_0: 7}}


def test_an_unfinished_move_of_a_query_that_was_replaced_keeps_nothing_from_the_new_one(tmp_path):
    query = Query(tmp_path)
    for batch in range(3):
        query.run(batch, {"orders": {0: batch}})
    spark = SparkCheckpoint(query.location)
    apply_plan(tmp_path, plan_truncate(spark, 1, CheckpointPolicy(sink="kafka")))
    (tmp_path / "_kafka_offsets/0001-truncate/done").unlink()
    assert ArchivedMoves(spark).unfinished() is not None
    query.start_over().run(0, {"orders": {0: 5}})
    spark = SparkCheckpoint(query.location)
    assert ArchivedMoves(spark).unfinished() is None
    assert apply_plan(tmp_path, seek(tmp_path)).archive == "0002-seek"


def test_the_cluster_of_a_query_that_was_replaced_is_not_that_of_the_new_one(tmp_path):
    query = Query(tmp_path)
    query.run(0, {"orders": {0: 5}})
    apply_plan(tmp_path, replace(seek(tmp_path), log_ids=LogIds("cluster-1")))
    spark = SparkCheckpoint(query.location)
    found = ArchivedMoves(spark).newest_with_cluster()
    assert found is not None
    Query(tmp_path, NEW_QUERY_ID)
    assert ArchivedMoves(SparkCheckpoint(query.location)).newest_with_cluster() is None


def test_a_failover_of_a_query_that_was_replaced_keeps_no_batch_from_the_new_one(tmp_path):
    query = Query(tmp_path)
    for batch in range(3):
        query.run(batch, {"orders": {0: 5 + batch}})
    apply_plan(tmp_path, replace(seek(tmp_path), kind="failover", archive="0001-failover"))
    spark, policy = SparkCheckpoint(query.location), CheckpointPolicy(sink="noop")
    assert "move 0001-failover" in plan_truncate(spark, 1, policy).refusals[0]
    Query(tmp_path, NEW_QUERY_ID).run(2, {"orders": {0: 7}})
    assert plan_truncate(spark, 1, policy).refusals == ()
