"""Of two moves of a checkpoint that begin at the same time at most one goes on."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_moves import apply_plan, files, interrupt, offset_of, restore, seek

from airflow_kafka_offsets.checkpoint import apply_move, archive
from airflow_kafka_offsets.checkpoint.apply_move import Claim
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointMovedError,
    GroupMovedError,
    MoveUnfinishedError,
    StorageUnavailableError,
)

SAME_TIME = "another move of this checkpoint began at the same time"


def test_the_claim_of_a_move_that_died_is_in_nobodys_way(three):
    spark = SparkCheckpoint(str(three))
    planned = seek(three, 3)
    Claim(spark, str(planned.archive))
    with pytest.raises(CheckpointMovedError, match=SAME_TIME):
        apply_plan(three, planned)
    apply_plan(three, seek(three, 4))
    assert offset_of(three) == 4


def test_a_move_that_began_since_the_plan_and_is_not_finished_is_in_the_way(three):
    first = seek(three, 3)
    claimed = Claim(SparkCheckpoint(str(three)), str(first.archive))
    second = seek(three, 4)
    claimed.withdraw()
    interrupt(three, first)
    with pytest.raises(MoveUnfinishedError, match="0001-seek .* was begun and not finished"):
        apply_plan(three, second)


def test_a_plan_without_a_change_does_not_hide_a_move_that_is_not_finished(three):
    apply_plan(three, seek(three, 3))
    taking_back = restore(three)
    interrupt(three, taking_back, before="verify_checkpoint")
    nothing_left = replace(taking_back, steps=(), archive=None)
    with pytest.raises(MoveUnfinishedError, match="0002-restore .* was begun and not finished"):
        apply_plan(three, nothing_left)
    apply_plan(three, restore(three, "0001-seek"))
    assert all(each.is_over for each in ArchivedMoves(SparkCheckpoint(str(three))))


def test_a_restore_that_gives_up_does_not_hide_the_unfinished_move_that_it_was_to_take_back(three):
    def refuse() -> None:
        raise GroupMovedError("the group was committed meanwhile")

    spark = SparkCheckpoint(str(three))
    interrupt(three, seek(three, 3), before="verify_checkpoint")
    with pytest.raises(GroupMovedError):
        apply_plan(three, restore(three, "0001-seek"), last_check=refuse)
    found = ArchivedMoves(spark).unfinished()
    assert found is not None
    assert found.name == "0001-seek"
    with pytest.raises(MoveUnfinishedError):
        seek(three, 4)
    assert apply_plan(three, restore(three, "0001-seek")).archive == "0003-restore"
    assert (offset_of(three), ArchivedMoves(spark).unfinished()) == (7, None)


def test_a_move_that_is_taken_back_while_it_is_under_way_fails(three):
    def take_back() -> None:
        apply_plan(three, restore(three))

    with pytest.raises(CheckpointMovedError, match="0001-seek .* was taken back while it was running"):
        apply_plan(three, seek(three, 3), commit=take_back)
    assert offset_of(three) == 7


def test_a_move_whose_last_look_at_its_archive_fails_says_that_all_was_moved(three, monkeypatch):
    mark_done = archive.mark_done

    def no_answer(*_):
        raise StorageUnavailableError("no answer")

    def mark(checkpoint: SparkCheckpoint, name: str) -> None:
        mark_done(checkpoint, name)
        monkeypatch.setattr(apply_move, "read_archived_move", no_answer)

    monkeypatch.setattr(apply_move, "mark_done", mark)
    with pytest.raises(StorageUnavailableError, match="no answer; all was moved, .* again marks it"):
        apply_plan(three, seek(three, 3))
    assert offset_of(three) == 3


def test_a_move_that_is_taken_back_right_before_it_is_marked_as_done_fails(three, monkeypatch):
    """Its process was frozen, and a person has restored the checkpoint meanwhile."""
    mark_done = archive.mark_done

    def taken_back(checkpoint: SparkCheckpoint, name: str) -> None:
        monkeypatch.setattr(apply_move, "mark_done", mark_done)
        apply_plan(three, restore(three))
        mark_done(checkpoint, name)

    monkeypatch.setattr(apply_move, "mark_done", taken_back)
    with pytest.raises(CheckpointMovedError, match="0001-seek .* was taken back while it was running"):
        apply_plan(three, seek(three, 3))
    assert (offset_of(three), ArchivedMoves(SparkCheckpoint(str(three))).unfinished()) == (7, None)


def test_the_rest_of_a_move_whose_first_try_gave_up_meanwhile_fails(three):
    interrupt(three, seek(three, 3), before="verify_checkpoint")
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    with pytest.raises(CheckpointMovedError, match="0001-seek was taken back while it was running"):
        apply_plan(three, seek(three, 3), commit=manifest.unlink)


@pytest.mark.parametrize("step", ["_refuse_changed", "write_archive"])
def test_a_time_limit_ends_a_move_though_the_storage_does_not_answer_any_more(three, monkeypatch, step):
    class TimeIsOverError(BaseException):
        """As Airflow's, which is no Exception."""

    def over() -> None:
        monkeypatch.setattr(SparkCheckpoint, "write_file", hang)
        monkeypatch.setattr(SparkCheckpoint, "remove_file", hang)
        raise TimeIsOverError

    def hang(*_: object) -> None:
        answers.wait()

    answers = threading.Event()
    planned = seek(three, 3)
    if step == "_refuse_changed":
        monkeypatch.setattr(apply_move, step, lambda *_: over())
    with pytest.raises(TimeIsOverError):
        apply_plan(three, planned, last_check=over)
    answers.set()
    monkeypatch.undo()

    assert offset_of(three) == 7
    assert (ArchivedMoves(SparkCheckpoint(str(three))).unfinished() is None) == (step == "_refuse_changed")


def test_of_two_moves_that_were_planned_together_the_one_that_claims_later_is_refused(three, monkeypatch):
    # Both would write the same manifest.
    first, other = seek(three, 3), seek(three, 4)
    write_archive = archive.write_archive

    def write(*arguments: Any) -> None:
        monkeypatch.setattr(apply_move, "write_archive", write_archive)
        with pytest.raises(CheckpointMovedError, match=SAME_TIME):
            apply_plan(three, other)
        write_archive(*arguments)

    monkeypatch.setattr(apply_move, "write_archive", write)
    apply_plan(three, first)

    assert offset_of(three) == 3
    assert [each.name for each in ArchivedMoves(SparkCheckpoint(str(three)))] == ["0001-seek"]


def test_a_move_notices_one_that_was_planned_after_its_claim_and_done_before_its_manifest(three, monkeypatch):
    write_archive, others = archive.write_archive, [4]

    def write(*arguments: Any) -> None:
        if others:
            apply_plan(three, seek(three, others.pop()))
        write_archive(*arguments)

    monkeypatch.setattr(apply_move, "write_archive", write)
    with pytest.raises(CheckpointMovedError, match=SAME_TIME):
        apply_plan(three, seek(three, 3))

    assert offset_of(three) == 4
    assert ArchivedMoves(SparkCheckpoint(str(three))).unfinished() is None


def test_a_move_that_was_planned_before_another_one_leaves_its_archive_alone(three):
    late = seek(three, 3)
    apply_plan(three, seek(three, 4))
    before = files(three)
    with pytest.raises(CheckpointMovedError, match=SAME_TIME):
        apply_plan(three, late)
    assert files(three) == before
