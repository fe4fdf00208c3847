"""Restores of a move that another move has followed, or whose result was lost."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from written_query import QUERY_ID

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.recovery import Recovery
from airflow_kafka_offsets.moves.apply import apply_groups, apply_pipeline
from airflow_kafka_offsets.moves.recovery import judge_recovery
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_receipt
from airflow_kafka_offsets.moves.stale import moved_on

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
GROUP = GroupSelection.parse("g", "orders")
RESET = CommitMetadata(run="r", task="reset", token="a", tool="reset")
RESTORE = CommitMetadata(run="back", task="restore", token="b", tool="restore")


@pytest.fixture
def reset(client):
    """Move the group, which is at 90, and return the receipt."""
    client.commit("g", {FIRST: 90, SECOND: 90})

    def move(offset, by=RESET):
        plan = plan_reset(client, None, GROUP, Place.parse(offset, "to_offset"), now=NOW, metadata=by)
        return apply_groups(client, plan, by)

    return move


@pytest.fixture
def restore(client):
    def move(receipt, by=RESTORE, **how):
        plan = plan_restore_receipt(client, Receipt.parse(receipt), None, GROUP, metadata=by, **how)
        apply_groups(client, plan, by)
        return [*committed_offsets(client.committed("g", [FIRST, SECOND])).values()]

    return move


@pytest.mark.parametrize(
    "by", [replace(RESET, run="later", token="c"), CommitMetadata(tool="group reset")], ids=["run", "tool"]
)
@pytest.mark.parametrize("own_run", [False, True])
def test_a_later_reset_to_an_offset_between_is_not_undone_unless_that_is_allowed(reset, restore, by, own_run):
    receipt = reset(20)
    reset(60, by)
    how = {"by": RESET, "same_run": True} if own_run else {}
    with pytest.raises(PlanRefusedError, match="'g' was committed on orders-0, orders-1 by .*skips 60"):
        restore(receipt, **how)
    assert restore(receipt, allow_stale=True, **how) == [90, 90]


def test_a_commit_of_the_recovery_and_an_own_move_are_undone(client, reset, restore):
    receipt = reset(20)
    client.commit("g", {FIRST: 50, SECOND: 20}, CommitMetadata(run="r", task="commit").text())
    assert restore(receipt) == [90, 90]
    receipt = reset(20)
    reset(60, replace(RESET, token="c"))
    assert restore(receipt, by=RESET, same_run=True) == [90, 90]


def test_a_receipt_that_was_restored_does_not_take_back_what_was_read_since(client, reset, restore):
    receipt = reset(95)
    assert restore(receipt) == [90, 90]
    client.commit("g", {FIRST: 92, SECOND: 92}, CommitMetadata(query="q").text())
    with pytest.raises(PlanRefusedError, match="reads 4 records again"):
        restore(receipt)
    assert restore(receipt, allow_stale=True) == [90, 90]


def test_what_an_earlier_try_of_an_interrupted_move_has_committed_is_no_later_move(pipeline, killed):
    pipeline.reset(50, RESET)
    pipeline.run(2, 52)
    with killed():
        pipeline.reset(40, replace(RESET, token="c"))
    pipeline.take_back("0002-seek")
    assert pipeline.query.stands() == {0: 52, 1: 52}


@pytest.mark.parametrize("undone", [False, True])
def test_a_move_of_a_query_that_was_replaced_is_not_undone_in_the_new_one(pipeline, undone):
    pipeline.reset(50, RESET)
    if undone:
        pipeline.take_back("0001-seek")
    pipeline.query = pipeline.query.start_over()
    pipeline.run(0, 60)
    with pytest.raises(PlanRefusedError, match="archive 0001-seek belongs to query 1111.* to query 9999"):
        pipeline.take_back("0001-seek")
    assert pipeline.query.stands() == {0: 60, 1: 60}


def test_a_move_that_others_have_followed_may_be_undone_where_everything_is_back_already(pipeline):
    pipeline.reset(50, RESET)
    pipeline.reset(90, replace(RESET, run="later", token="c"))
    pipeline.take_back("0001-seek")
    assert pipeline.query.stands() == {0: 90, 1: 90}


@pytest.fixture
def restored(pipeline):
    """The receipt of a reset that was taken back by a restore whose result was lost."""
    receipt, by = Receipt.parse(pipeline.reset(50, RESET)), replace(RESTORE, run="r")
    plan = plan_restore_receipt(pipeline.client, receipt, pipeline.checkpoint, pipeline.group, metadata=by)
    apply_pipeline(pipeline.client, plan, by, pipeline.checkpoint, 0)
    return receipt


def judge(pipeline, receipt):
    recovery = Recovery({RESET.identity}, replace(RESTORE, run="r"), pipeline.group.group_ids)
    return judge_recovery(pipeline.client, pipeline.checkpoint, receipt, recovery)


def test_a_restore_whose_result_was_lost_has_put_everything_back(pipeline, restored):
    verdict = judge(pipeline, restored)
    assert (verdict.restored, verdict.to_restore) == (True, False)
    assert verdict.describe_outcome(restored, None) == "everything was put back"


def test_a_reset_and_a_commit_of_other_runs_since_a_restore_stay(pipeline, restored):
    pipeline.reset(30, replace(RESET, run="other", token="c"))
    by = CommitMetadata(run="other", task="commit", query=QUERY_ID, move=3)
    pipeline.client.commit("g", dict.fromkeys(pipeline.groups, 30), by.text())
    verdict = judge(pipeline, restored)
    assert not verdict.to_restore
    outcome = verdict.describe_outcome(restored, None)
    assert outcome.startswith("put back: the rest, by an earlier try; not put back: checkpoint ")
    assert "was moved again by 0003-seek (run other" in outcome


@pytest.mark.parametrize(
    ("before", "moved_to", "now", "has_gone_on"),
    [
        (30, 10, 10, False),  # nothing has happened since
        (30, 10, 20, False),  # the recovery has come half-way
        (30, 10, 30, False),  # it was finished, or the move was taken back
        (30, 10, 31, True),
        (30, 10, 9, True),  # another one has moved it further back
        (10, 30, 30, False),
        (10, 30, 31, True),
        (10, 30, 10, False),
        (10, 30, 20, True),  # another one has read or moved to there: the move leads past it
        (10, 30, 9, True),
        (10, 10, 11, True),  # a partition that the move has left where it was
        (10, None, 11, True),
        (10, 30, None, False),
    ],
)
def test_a_partition_has_gone_on_where_neither_the_move_nor_its_recovery_leads(
    before, moved_to, now, has_gone_on
):
    found = moved_on({FIRST: now}, {FIRST: before}, {} if moved_to is None else {FIRST: moved_to})
    assert found == ([FIRST] if has_gone_on else [])
