"""A truncation removes the newest batches, in an order that Spark can start from after each file."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from checkpoint_moves import ORDERS_0, THREE, apply_plan, files, spark_starts, truncate

from airflow_kafka_offsets.checkpoint import reader
from airflow_kafka_offsets.storage import list_names

if TYPE_CHECKING:
    from pathlib import Path

    from fsspec import AbstractFileSystem


def test_a_truncation_removes_newest_first_and_commits_before_offsets(begun):
    checkpoint_plan = truncate(begun, 0, sink="noop")
    assert [(step.path, step.data) for step in checkpoint_plan.steps] == [
        ("offsets/3", None),
        ("commits/2", None),
        ("offsets/2", None),
        ("commits/1", None),
        ("offsets/1", None),
    ]
    assert checkpoint_plan.discarded == (3,)
    assert checkpoint_plan.after == {"0": {ORDERS_0: 5}}


def test_a_truncation_to_the_newest_batch_changes_nothing_and_needs_no_sink(three):
    before = files(three)
    checkpoint_plan = apply_plan(three, truncate(three, 2))
    assert checkpoint_plan.steps == ()
    assert files(three) == before


@pytest.mark.parametrize("batch_id", [-1, 3, 4])
def test_only_a_finished_batch_can_be_truncated_to(batch_id, begun, assert_refused):
    assert_refused(
        begun,
        truncate(begun, batch_id, sink="noop"),
        f"batch {batch_id} is not a finished batch of the checkpoint; finished batches: 0 to 2",
    )


def test_one_batch_is_named_and_not_counted(checkpoint, assert_refused):
    root = checkpoint({0: 1}, [0])
    assert_refused(root, truncate(root, 1, sink="noop"), "; finished batches: only 0: Spark keeps")


def test_a_truncation_needs_the_batch_before_too(checkpoint, assert_refused):
    root = checkpoint({5: 1, 6: 2, 8: 4, 9: 5}, [5, 6, 8, 9])
    assert_refused(root, truncate(root, 5, sink="noop"), "offsets/4 does not exist")
    assert_refused(root, truncate(root, 8, sink="noop"), "offsets/7 does not exist")
    assert truncate(root, 6, sink="noop").refusals == ()


@pytest.mark.parametrize("line", ['{"logOffset":0}', "17", "-"])
def test_a_query_with_a_source_that_is_not_kafka_is_not_truncated(line, checkpoint, assert_refused):
    log = f'v1\n{{"batchTimestampMs":1}}\n{{"orders":{{"0":7}}}}\n{line}'
    root = checkpoint({0: log, 1: log}, [0, 1])
    assert_refused(root, truncate(root, 0, sink="noop"), "source 1 is not Kafka and keeps its own log")


STATES = {
    "deltas": ("0/0/{}.delta",),
    "a snapshot": ("0/0/{}.snapshot",),
    "RocksDB": ("0/0/{}.zip",),
    "RocksDB's changelog": ("0/0/{}.changelog",),
    "the second format": ("0/0/{}_398e234e-009d-48da-9dae-7f95254395dd.zip",),
    "the second format's changelog": ("0/0/{}_398e234e-009d-48da-9dae-7f95254395dd.changelog",),
    "a join": ("0/0/left-keyToNumValues/{}.delta", "0/0/right-keyToNumValues/{}.delta"),
    "two operators": ("0/0/{}.delta", "1/0/{}.delta"),
}


def as_a_whole(name: str) -> str:
    """Return the name of the snapshot in place of changes."""
    return name.replace(".delta", ".snapshot").replace(".changelog", ".zip")


def keep_state(root: Path, names: tuple[str, ...], versions: range) -> None:
    for name in names:
        for version in versions:
            path = root / "state" / name.format(version)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"state %d" % version)
    (root / "state/0/0/_metadata").mkdir(parents=True, exist_ok=True)
    (root / "state/0/0/_metadata/schema").write_bytes(b"schema")


@pytest.mark.parametrize("names", STATES.values(), ids=STATES)
def test_a_query_with_state_is_truncated_to_a_batch_whose_state_is_kept(names, three, assert_refused):
    # Version 1, the state after batch 0, is not kept any more; version 2 is there as a whole.
    keep_state(three, names, range(2, 4))
    keep_state(three, tuple(as_a_whole(name) for name in names), range(2, 3))
    assert_refused(
        three,
        truncate(three, 0, sink="noop"),
        "the state after batch 0 (version 1) is no longer complete: for every partition, Spark needs the "
        "newest snapshot up to this version and all changes since; batches that can be truncated to: 1",
    )
    apply_plan(three, truncate(three, 1, sink="noop"))
    assert spark_starts(three) == (1, 1)


CHANGES = {name: names for name, names in STATES.items() if "delta" in names[0] or "changelog" in names[0]}


@pytest.mark.parametrize("names", CHANGES.values(), ids=CHANGES)
def test_changes_are_a_state_only_with_all_since_the_first_batch(names, three, assert_refused):
    keep_state(three, names, range(2, 4))
    assert_refused(three, truncate(three, 1, sink="noop"), "Spark keeps the state of no earlier batch")
    keep_state(three, names, range(1, 2))
    apply_plan(three, truncate(three, 1, sink="noop"))
    assert spark_starts(three) == (1, 1)


@pytest.mark.parametrize(
    "gone", ["0/1/1.delta", "0/1/2.delta", "0/1/left/2.delta", "0/1", "1/0/1.delta"], ids=str
)
def test_the_state_of_every_partition_and_store_must_be_kept(gone, three, assert_refused):
    stores = ("0/0/{}.delta", "0/1/{}.delta", "0/2/{}.delta", "1/0/{}.delta")
    keep_state(three, stores, range(1, 4))
    if "left" in gone:
        keep_state(three, tuple(f"0/{number}/left/{{}}.delta" for number in range(3)), range(1, 4))
    path = three / "state" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert_refused(three, truncate(three, 1, sink="noop"), "(version 2) is no longer complete")


def test_the_directories_of_the_state_are_listed_once(three, monkeypatch):
    keep_state(three, tuple(f"0/{number}/{{}}.delta" for number in range(200)), range(1, 4))
    listed: Counter[str] = Counter()

    def count(fs: AbstractFileSystem, path: str) -> list[str] | None:
        listed[path] += 1
        return list_names(fs, path)

    monkeypatch.setattr(reader, "list_names", count)
    assert truncate(three, 1, sink="noop").refusals == ()
    below = {path: number for path, number in listed.items() if "/state/" in path}
    assert (len(below), set(below.values())) == (201, {1})


@pytest.mark.parametrize("name", ["12.delta", "2.delta.crc", ".2.delta.crc", "2_x.tmp"])
def test_other_files_are_not_taken_for_the_state_of_a_version(name, three, assert_refused):
    keep_state(three, (f"0/0/{name}",), range(1))
    assert_refused(three, truncate(three, 1, sink="noop"), "(version 2) is no longer complete")


def test_whole_states_of_removed_batches_go_with_their_checksums_and_changes_stay(three):
    keep_state(three, ("0/0/{}.delta", "0/1/{}.delta", "3/0/left-keyToNumValues/{}.delta"), range(1, 4))
    stores = ["state/0/0", "state/0/1", "state/3/0/left-keyToNumValues"]
    for store in stores:
        (three / store).mkdir(exist_ok=True)
        for name in (
            "2.snapshot",
            ".2.snapshot.crc",
            "3.delta",
            "3.snapshot",
            ".3.snapshot.crc",
            "3.snapshot.crc",
        ):
            (three / store / name).write_bytes(b"state")
    keep_state(three, ("1/0/{}.changelog", "1/0/{}.zip", "2/0/{}.zip"), range(1, 4))
    before = files(three)

    checkpoint_plan = apply_plan(three, truncate(three, 1, sink="noop"))

    gone = {path for path in before.keys() - files(three).keys() if path.startswith("state/")}
    expected = {f"{store}/3.snapshot" for store in stores} | {"state/1/0/3.zip"}
    assert set(checkpoint_plan.derived) == expected
    assert gone == expected | {
        f"{store}/{name}" for store in stores for name in (".3.snapshot.crc", "3.snapshot.crc")
    }


def test_a_commit_without_its_offsets_is_not_removed_without_a_look_at_the_sink(checkpoint, tmp_path):
    root = checkpoint(THREE, [0, 1, 2, 3])
    assert "does not name the sink" in truncate(root, 2).refusals[0]
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for number in range(4):
        (log / str(number)).write_text("v1\n")
    refused = truncate(root, 2, sink="file", sink_location=str(tmp_path / "out"))
    assert "has recorded batch 3" in refused.refusals[0]
