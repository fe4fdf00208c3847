"""An archive that was damaged, or leads elsewhere, is refused; archives keep their order."""

import json
import shutil
import sys
from functools import partial

import pytest
from checkpoint_moves import apply_plan, files, interrupt, offset_of, restore, seek, truncate

from airflow_kafka_offsets.checkpoint.archive import file_digest
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves, next_archive_name
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointFormatError,
    MoveUnfinishedError,
    PlanRefusedError,
)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda copy: copy.write_bytes(copy.read_bytes()[:-1]), "changed"),
        (lambda copy: copy.unlink(), "gone"),
    ],
    ids=["cut off", "gone"],
)
def test_a_damaged_copy_is_not_put_back(damage, says, three):
    apply_plan(three, seek(three))
    damage(three / "_kafka_offsets/0001-seek/offsets/2")
    before = files(three)
    with pytest.raises(
        CheckpointError, match=f"_kafka_offsets/0001-seek/offsets/2: is {says} since it was kept"
    ):
        restore(three)
    assert files(three) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "\udcff",
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"newest_planned"', '"newest"'),
        lambda text: text.replace('"orders"', '"or ders"'),
        lambda text: text.replace('"files": {', '"files": [], "was": {'),
        lambda text: "hunter2",
        lambda text: text.replace('"version": 1', '"version": "hunter2"'),
        lambda text: text.replace('"batch_id": 2', '"batch_id": "hunter2"'),
        lambda text: text.replace('"undoes": null', '"undoes": ["hunter2"]'),
        lambda text: text.replace('"orders"', '"hunter2 "'),
        lambda text: text.replace('"files": {', '"files": {"hunter2": {},'),
        lambda text: text.replace('"query_id"', '"hunter2": 1, "hunter2": 1, "id"'),
    ],
)
def test_a_damaged_manifest_is_named_not_quoted_and_nothing_is_put_back(damage, three):
    apply_plan(three, seek(three))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    manifest.write_text(damage(manifest.read_text()), errors="surrogateescape")
    before = files(three)
    with pytest.raises(
        CheckpointFormatError,
        match="_kafka_offsets/0001-seek/manifest.json: cannot be read .* expected a manifest of version 1",
    ) as refused:
        restore(three)
    assert "hunter2" not in str(refused.value)
    assert files(three) == before


@pytest.mark.parametrize(
    "path",
    [
        "../7",
        "/tmp/7",
        "offsets/../../7",
        "offsets/./2",
        "metadata",
        "state/0/0/1.delta",
        "offsets/",
        "offsets/2\n",
    ],
)
def test_a_manifest_that_leads_anywhere_but_to_batches_is_refused(path, three):
    apply_plan(three, seek(three))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    text = json.loads(manifest.read_text())
    text["files"] = {path: {"before": None, "after": file_digest((three / "offsets/2").read_bytes())}}
    manifest.write_text(json.dumps(text))
    (three.parent / "7").write_text("another's")
    before = files(three.parent)
    with pytest.raises(CheckpointFormatError, match="entry 1 of files is not a batch in offsets or commits"):
        restore(three)
    assert files(three.parent) == before


@pytest.mark.parametrize("path", ["../7", "/tmp/7", "offsets//7", "offsets/./7", "offsets/../7", "a\0b", ""])
def test_nothing_is_written_or_removed_outside_of_a_checkpoint(path, three):
    (three.parent / "7").write_text("another's")
    before = files(three.parent)
    spark = SparkCheckpoint(str(three))
    for change in (partial(spark.write_file, data=b""), spark.remove_file):
        with pytest.raises(CheckpointError, match="is not the path of a file below the checkpoint"):
            change(path)
    assert files(three.parent) == before


@pytest.mark.parametrize("linked", ["offsets", "commits", "_kafka_offsets", "state"])
def test_a_checkpoint_is_not_changed_through_a_symbolic_link(linked, three, tmp_path):
    (three / "state/0/0").mkdir(parents=True)
    for version in ("1.delta", "2.delta", "3.delta", "3.snapshot"):
        (three / "state/0/0" / version).write_bytes(b"")
    elsewhere = tmp_path / "elsewhere"
    (three / linked).rename(elsewhere) if linked != "_kafka_offsets" else elsewhere.mkdir()
    (three / linked).symlink_to(elsewhere)
    before = files(tmp_path)
    with pytest.raises((CheckpointError, PlanRefusedError), match=f"{linked}: is a symbolic link"):
        apply_plan(three, truncate(three, 1, sink="noop"))
    assert files(tmp_path) == before


def test_a_batch_that_is_a_symbolic_link_is_replaced_and_what_it_leads_to_stays(three, tmp_path):
    elsewhere = (three / "offsets/2").rename(tmp_path / "elsewhere")
    before = elsewhere.read_bytes()
    (three / "offsets/2").symlink_to(elsewhere)
    apply_plan(three, seek(three))
    assert elsewhere.read_bytes() == before
    assert not (three / "offsets/2").is_symlink()


def test_an_archive_without_a_manifest_is_ignored_and_its_number_not_used_again(three):
    half = three / "_kafka_offsets/0001-seek/offsets"
    half.mkdir(parents=True)
    (half / "2").write_text("half a copy")
    with pytest.raises(CheckpointError, match="there is no move to take back"):
        restore(three)
    assert apply_plan(three, seek(three)).archive == "0002-seek"
    assert apply_plan(three, restore(three)).undoes == "0002-seek"
    assert offset_of(three) == 7


def test_archives_are_ordered_by_number_also_beyond_four_digits(three):
    (three / "_kafka_offsets/9999-restore").mkdir(parents=True)
    (three / "_kafka_offsets/9999-restore/a.claim").touch()
    (three / "_kafka_offsets/notes").mkdir()
    spark = SparkCheckpoint(str(three))
    assert next_archive_name(spark, "seek") == "10000-seek"
    apply_plan(three, seek(three, 1))
    (three / "_kafka_offsets/10000-seek").rename(three / "_kafka_offsets/9999-seek")
    apply_plan(three, seek(three, 2))
    assert [archive.name for archive in ArchivedMoves(spark)] == ["9999-seek", "10000-seek"]
    assert restore(three).undoes == "10000-seek"


@pytest.mark.parametrize("number", ["0002", "0007", "999999999", "9999999999"])
@pytest.mark.parametrize("file", ["", "notes.txt", "offsets/2"])
def test_a_directory_that_no_move_has_made_hides_no_archive(three, number, file):
    apply_plan(three, seek(three, 5))
    stray = three / f"_kafka_offsets/{number}-seek"
    stray.mkdir()
    if file:
        (stray / file).parent.mkdir(exist_ok=True)
        (stray / file).write_text("x")
    begun = seek(three, 4)
    assert begun.archive == ("0003-seek" if number == "0002" else "0002-seek")
    interrupt(three, begun)
    with pytest.raises(MoveUnfinishedError, match=f"move {begun.archive} .* was begun and not finished"):
        seek(three, 3)
    apply_plan(three, seek(three, 4))
    apply_plan(three, restore(three))
    assert offset_of(three) == 5


@pytest.mark.parametrize("file", ["manifest.json", "a.claim"])
def test_an_archive_with_the_last_number_is_an_error_and_hides_nothing(three, file):
    apply_plan(three, seek(three, 5))
    last = three / "_kafka_offsets/999999999-seek"
    shutil.copytree(three / "_kafka_offsets/0001-seek", last)
    for path in last.iterdir():
        if path.suffix in (".claim", ".json"):
            path.unlink()
    (last / file).write_bytes((three / "_kafka_offsets/0001-seek/manifest.json").read_bytes())
    before = files(three)
    with pytest.raises(CheckpointError, match="found 999999999-seek, .* move it away if no move created it"):
        seek(three, 4)
    assert files(three) == before


@pytest.mark.parametrize("field", ["run", "task", "dag", "user", "tool", "query"])
def test_who_has_made_a_move_takes_one_line_of_an_error(three, field):
    apply_plan(three, seek(three, 5))
    begun = seek(three, 4)
    interrupt(three, begun)
    manifest = three / f"_kafka_offsets/{begun.archive}/manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(found | {"by": {"run": "r", field: "x" * 500_000}}))
    with pytest.raises(MoveUnfinishedError) as caught:
        seek(three, 3)
    assert len(str(caught.value)) < 2_000
    assert (
        sys.getsizeof(list(ArchivedMoves(SparkCheckpoint(str(three))))[-1].made_by.__dict__[field]) < 10_000
    )


@pytest.mark.parametrize("created", ["x" * 500_000, "", "yesterday\nand today"])
def test_when_a_move_was_made_has_the_form_that_this_package_writes(three, created):
    apply_plan(three, seek(three, 5))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created": created}))
    with pytest.raises(
        CheckpointFormatError, match=r"cannot be read \(found an? .*text.* as created\)"
    ) as caught:
        restore(three)
    assert len(str(caught.value)) < 2_000
