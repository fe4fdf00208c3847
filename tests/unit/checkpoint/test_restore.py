"""A restore puts back what a move has overwritten."""

from pathlib import Path

import pytest
from checkpoint_moves import (
    DISCARD,
    apply_plan,
    files,
    offset_of,
    restore,
    seek,
    spark_starts,
    sparks_own,
    truncate,
)

from airflow_kafka_offsets.checkpoint import apply_move, archive
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError, StorageUnavailableError


def test_the_newest_move_that_was_not_taken_back_is_taken_back(three):
    original = sparks_own(files(three))
    apply_plan(three, seek(three, 1))
    apply_plan(three, seek(three, 2))
    assert apply_plan(three, restore(three)).undoes == "0002-seek"
    assert offset_of(three) == 1
    assert apply_plan(three, restore(three)).undoes == "0001-seek"
    assert sparks_own(files(three)) == original


def test_a_restore_whose_end_may_be_noted_names_its_move(three, monkeypatch):
    """Without the name, another try would take back the move before."""
    apply_plan(three, seek(three, 1))
    apply_plan(three, seek(three, 2))
    note = archive.mark_undone

    def lose_the_answer(*mark):
        note(*mark)
        raise StorageUnavailableError("read timeout")

    monkeypatch.setattr(apply_move, "mark_undone", lose_the_answer)
    with pytest.raises(StorageUnavailableError, match="restoring archive 0002-seek again marks it$"):
        apply_plan(three, restore(three))
    monkeypatch.undo()
    assert apply_plan(three, restore(three, "0002-seek")).steps == ()
    assert offset_of(three) == 1


def test_a_copy_without_the_newest_finished_batch_is_not_restored(three):
    """With its files back, the newest batch would be another one than that of the archive."""
    apply_plan(three, seek(three))
    (three / "commits" / "2").unlink()
    before = files(three)
    with pytest.raises(PlanRefusedError, match="batch 2 was begun and not finished"):
        apply_plan(three, restore(three))
    assert files(three) == before


def test_a_restore_is_not_taken_back_by_default_and_nothing_is_left_then(three):
    apply_plan(three, seek(three))
    apply_plan(three, restore(three))
    before = files(three)
    with pytest.raises(
        CheckpointError,
        match=r"no move to take back; there are: 0001-seek \(undone\), 0002-restore \(20.*\): "
        r"name one of them$",
    ):
        restore(three)
    assert files(three) == before


def test_a_restore_can_be_taken_back_by_its_name(three):
    apply_plan(three, seek(three))
    apply_plan(three, restore(three))
    checkpoint_plan = apply_plan(three, restore(three, "0002-restore"))
    assert (checkpoint_plan.undoes, checkpoint_plan.archive) == ("0002-restore", "0003-restore")
    assert offset_of(three) == 3


def test_a_move_can_be_taken_back_by_its_name_again_and_nothing_changes(three):
    apply_plan(three, seek(three))
    apply_plan(three, restore(three))
    before = sparks_own(files(three))
    checkpoint_plan = apply_plan(three, restore(three, "0001-seek"))
    assert (checkpoint_plan.steps, checkpoint_plan.archive) == ((), None)
    assert sparks_own(files(three)) == before


def test_an_earlier_move_is_taken_back_by_its_name_as_a_seek(three):
    apply_plan(three, seek(three, 1))
    apply_plan(three, seek(three, 2))
    checkpoint_plan = apply_plan(three, restore(three, "0001-seek"))
    assert checkpoint_plan.undoes == "0001-seek"
    assert offset_of(three) == 7


def test_a_name_that_is_not_there_is_refused_with_those_that_are(three):
    with pytest.raises(CheckpointError, match="there is no archive 0009-seek: correct the location, or give"):
        restore(three, "0009-seek")
    apply_plan(three, seek(three))
    with pytest.raises(CheckpointError, match=r"found no archive 0009-seek; there are: 0001-seek \(20"):
        restore(three, "0009-seek")


def test_an_archive_of_another_query_is_refused(three):
    apply_plan(three, seek(three))
    (three / "metadata").write_text('{"id":"another"}')
    before = files(three)
    with pytest.raises(
        PlanRefusedError, match=r"archive 0001-seek belongs to query 975d5cb5-.* belongs to query another"
    ):
        restore(three)
    assert files(three) == before


def test_a_restore_of_a_truncation_brings_everything_back_oldest_first_and_offsets_before_commits(begun):
    original = sparks_own(files(begun))
    apply_plan(begun, truncate(begun, 0, sink="noop"))
    checkpoint_plan = apply_plan(begun, restore(begun))
    assert [step.path for step in checkpoint_plan.steps] == [
        "offsets/1",
        "commits/1",
        "offsets/2",
        "commits/2",
        "offsets/3",
    ]
    assert sparks_own(files(begun)) == original
    assert spark_starts(begun) == (2, 3)


@pytest.mark.parametrize(
    "move", [seek, lambda root: truncate(root, 0, sink="noop")], ids=["seek", "truncate"]
)
def test_a_restore_after_the_query_has_run_is_a_seek(move, three, checkpoint):
    apply_plan(three, move(three))
    batch = (SparkCheckpoint(str(three)).read().batch_id or 0) + 1
    checkpoint({batch: 8}, [batch])
    before = files(three)

    checkpoint_plan = apply_plan(three, restore(three))

    assert (checkpoint_plan.kind, [step.path for step in checkpoint_plan.steps]) == (
        "restore",
        [f"offsets/{batch}"],
    )
    assert offset_of(three) == 7
    assert spark_starts(three) == (batch, batch)
    changed = {path for path in before if files(three).get(path) != before[path]}
    assert changed == {f"offsets/{batch}"}
    assert (
        three / "_kafka_offsets" / str(checkpoint_plan.undoes) / "undone"
    ).read_text() == f"{checkpoint_plan.archive}\n"


def test_a_restore_while_a_new_batch_is_unfinished_needs_what_a_seek_needs(three, checkpoint, assert_refused):
    apply_plan(three, seek(three))
    checkpoint({3: 8}, [])
    assert_refused(three, restore(three), "batch 3 was begun and not finished")
    checkpoint_plan = apply_plan(three, restore(three, **DISCARD))
    assert [step.path for step in checkpoint_plan.steps] == ["offsets/3", "offsets/2"]
    assert offset_of(three) == 7


def test_a_restore_of_a_seek_of_a_query_with_state_that_has_run_needs_the_flag_again(
    three, checkpoint, assert_refused
):
    (three / "state/0/0").mkdir(parents=True)
    apply_plan(three, seek(three, allow_stateful=True))
    assert restore(three).refusals == ()
    checkpoint({3: 8}, [3])
    assert_refused(three, restore(three), "the query keeps state")


def called_undo(root: Path) -> None:
    """Name the archive of a restore as versions before 0.1.0 did."""
    archive = (root / "_kafka_offsets/0002-restore").rename(root / "_kafka_offsets/0002-undo")
    manifest = archive / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"kind": "restore"', '"kind": "undo"'))


def test_an_archive_of_the_kind_undo_is_one_of_a_restore(three):
    apply_plan(three, seek(three))
    apply_plan(three, restore(three))
    called_undo(three)
    newest = ArchivedMoves(SparkCheckpoint(str(three))).newest
    assert newest is not None
    assert (newest.name, newest.kind, newest.undoes) == ("0002-undo", "restore", "0001-seek")
    with pytest.raises(CheckpointError, match=r"found no move to take back; .* 0002-undo \(20"):
        restore(three)
    assert apply_plan(three, restore(three, "0002-undo")).archive == "0003-restore"


def test_an_undo_that_was_interrupted_is_finished_as_a_restore(three):
    apply_plan(three, seek(three))
    apply_plan(three, restore(three))
    called_undo(three)
    # As if it had been interrupted before its end.
    (three / "_kafka_offsets/0002-undo/done").unlink()
    (three / "_kafka_offsets/0001-seek/undone").unlink()
    assert apply_plan(three, restore(three, "0001-seek")).archive == "0002-undo"
    assert ArchivedMoves(SparkCheckpoint(str(three))).unfinished() is None
