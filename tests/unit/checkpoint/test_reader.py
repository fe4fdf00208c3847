import json
import os
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from checkpoint_moves import METADATA, ORDERS_0, QUERY_ID, TimelessFileSystem, offset_log
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointSource, CheckpointState
from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, CheckpointNotFoundError


def read(root: Path) -> CheckpointState:
    return SparkCheckpoint(str(root)).read()


# --- which batch


def test_any_batch_that_is_kept_can_be_read_and_one_that_is_not_is_named(checkpoint):
    kept = SparkCheckpoint(str(checkpoint({3: 5, 4: 6, 5: 9}, [3, 4])))
    assert [kept.entry(batch).kafka_offsets for batch in (3, 5)] == [
        {"0": {ORDERS_0: 5}},
        {"0": {ORDERS_0: 9}},
    ]
    with pytest.raises(
        CheckpointError, match="offsets/2: does not exist; expected a batch that Spark has planned"
    ):
        kept.entry(2)


def test_the_committed_batch_is_the_highest_in_both_directories(checkpoint):
    state = read(checkpoint({0: 5, 1: 6, 2: 9}, [0, 1]))
    assert (state.query_id, state.batch_id, state.pending_batch_id) == (QUERY_ID, 1, 2)
    assert state.sources == (CheckpointSource("0", {ORDERS_0: 6}),)
    assert (state.batch_timestamp_ms, state.skipped_batch_ids) == (1795228309758, ())


@pytest.mark.parametrize(
    ("offsets", "commits", "batch_id", "pending", "skipped"),
    [
        ([0, 1, 3, 5, 7], [0, 1, 3, 5, 7], 7, None, ()),
        ([0, 1, 3, 5, 7], [0, 1, 3, 5], 5, 7, ()),
        ([10, 11, 12], [10, 11, 12], 12, None, ()),
        ([8, 9, 10, 100], [8, 9, 10, 100], 100, None, ()),
        ([9, 10, 11, 12, 13], [8, 10, 12], 12, 13, (11,)),
        ([0, 1, 2, 3, 4], [0, 4], 4, None, (1, 2, 3)),
        ([0, 1], [0, 1, 2], 1, None, ()),
        ([0], [], None, 0, ()),
        ([], [], None, None, ()),
    ],
)
def test_gaps_and_purged_history_are_normal(offsets, commits, batch_id, pending, skipped, checkpoint):
    state = read(checkpoint({batch: batch for batch in offsets}, commits))
    assert (state.batch_id, state.pending_batch_id) == (batch_id, pending)
    # A batch without a commit before the newest one is not.
    assert state.skipped_batch_ids == skipped


def test_a_query_that_never_finished_a_batch_has_no_sources(checkpoint):
    state = read(checkpoint({0: 5}, []))
    assert state.sources == ()
    assert state.batch_timestamp_ms is None


def test_a_query_that_planned_nothing_yet_has_only_its_metadata(tmp_path):
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    assert read(tmp_path) == CheckpointState(str(tmp_path), QUERY_ID, None, frozenset(), frozenset(), None)


def test_leftovers_are_no_batches(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    leftovers = [".1.crc", ".7.0c2f.tmp", "..7.0c2f.tmp.crc", "7.tmp", "007", "-7", "7 ", "\u0667", "8.crc"]
    for directory in ("offsets", "commits"):
        for name in leftovers:
            (root / directory / name).write_text("left behind")
    state = read(root)
    assert (state.batch_id, state.pending_batch_id) == (1, None)


def test_commits_without_any_of_their_offsets_are_refused(checkpoint):
    with pytest.raises(
        CheckpointFormatError, match=r"commits up to 4 and offsets 6 to 7; expected a batch .* both"
    ):
        read(checkpoint({6: 6, 7: 7}, [3, 4]))


# --- its sources


def test_sources_come_by_index_then_by_name_whatever_the_order_of_lines(checkpoint):
    entry = f'v2\n{METADATA}\nrt:10\n10:0\norders:{{"orders":{{"0":7}}}}\n2:-'
    sources = read(checkpoint({0: entry}, [0])).sources
    assert sources == (
        CheckpointSource("2", None, begun=False),
        CheckpointSource("10", None),
        CheckpointSource("orders", {ORDERS_0: 7}),
        CheckpointSource("rt", None),
    )


def test_the_state_as_json_has_offsets_in_sparks_form(checkpoint):
    root = checkpoint({0: f'v1\n{METADATA}\n{{"orders":{{"2":7,"0":9}}}}\n{{"logOffset":0}}', 1: 5}, [0])
    assert json.loads(json.dumps(read(root).as_json())) == {
        "location": str(root),
        "query_id": QUERY_ID,
        "batch_id": 0,
        "pending_batch_id": 1,
        "sources": [
            {"source": "0", "kafka": True, "offsets": {"orders": {"0": 9, "2": 7}}},
            {"source": "1", "kafka": False, "offsets": None},
        ],
    }


# --- what is refused


@pytest.mark.parametrize(
    ("file", "content"),
    [("metadata", b'{"id":"975d'), ("offsets/1", b'v1\n{}\n{"orders":{"0":4'), ("commits/1", b"v9\n{}")],
)
def test_a_file_in_no_known_form_is_refused_by_name(file, content, checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    (root / file).write_bytes(content)
    with pytest.raises(CheckpointFormatError) as refused:
        read(root)
    assert str(refused.value).startswith(f"{root}/{file}")
    assert "expected" in str(refused.value)


def test_an_older_file_in_no_known_form_does_not_matter(checkpoint):
    root = checkpoint({0: "cut off", 1: 6}, [0, 1])
    assert read(root).batch_id == 1


def not_found(location: Path) -> str:
    with pytest.raises(CheckpointNotFoundError) as refused:
        read(location)
    found, _, expected = str(refused.value).removeprefix(f"{location}: found ").partition("; expected ")
    assert expected.startswith("the directory that the Spark job has as checkpointLocation")
    return found


def without_metadata(root):
    (root / "metadata").unlink()
    return root


def directory_with(parent, *names):
    for name in names:
        (parent / "no-checkpoint" / name).mkdir(parents=True)
    return parent / "no-checkpoint"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (lambda root: root.parent / "missing" / "cp", "nothing on this machine"),
        (lambda root: directory_with(root, ""), "nothing on this machine"),
        (lambda root: root / "metadata", "no directory that can be listed"),
        (lambda root: root.parent, "a directory with checkpoint"),
        (without_metadata, "a directory with commits, offsets"),
        (lambda root: directory_with(root, "metadata", "data"), "a directory with data, metadata"),
    ],
)
def test_a_location_without_a_checkpoint_is_described(given, found, checkpoint):
    assert not_found(given(checkpoint({0: 5}, [0]))) == found


# --- what it costs


class _CountingFileSystem(MemoryFileSystem):
    """Counts what is asked of the storage, in instances of its own."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.listed: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.calls: list[str] = []

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        self.listed[path] += 1
        self.calls.append(f"ls {path}")
        return super().ls(path, detail=detail, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.opened[path] += 1
        return super().cat_file(path, *args, **kwargs)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.opened[path] += 1
        return super()._open(path, *args, **kwargs)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.calls.append(f"invalidate {path}")

    def info(self, path: str, **kwargs: Any) -> Any:
        raise AssertionError(f"info({path}): a request of its own on an object store")


def test_the_newest_of_50000_batches_costs_two_listings_and_three_files():
    fs = _CountingFileSystem()
    root = "/counting/cp"
    batches = 50_000
    try:
        fs.makedirs(f"{root}/offsets")
        fs.makedirs(f"{root}/commits")
        fs.pipe_file(f"{root}/metadata", json.dumps({"id": QUERY_ID}).encode())
        # All files are one: the names are what counts here, and 100,000 files of their own take a while.
        fs.pipe_file(f"{root}/offsets/0", offset_log(42).encode())
        fs.pipe_file(f"{root}/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
        for directory in ("offsets", "commits"):
            first = fs.store[f"{root}/{directory}/0"]
            fs.store.update({f"{root}/{directory}/{batch}": first for batch in range(1, batches)})
        fs.listed.clear()
        fs.opened.clear()
        fs.calls.clear()

        state = SparkCheckpoint("memory://counting/cp", fs=fs).read()
    finally:
        for path in [path for path in fs.store if path.startswith(root)]:
            del fs.store[path]

    assert (state.batch_id, state.pending_batch_id) == (batches - 1, None)
    assert state.kafka_offsets == {"0": {ORDERS_0: 42}}
    assert fs.listed == {f"{root}/offsets": 1, f"{root}/commits": 1}
    assert fs.opened == {
        f"{root}/metadata": 1,
        f"{root}/offsets/{batches - 1}": 1,
        f"{root}/commits/{batches - 1}": 1,
    }
    assert fs.calls == [
        f"{verb} {root}/{directory}" for directory in ("offsets", "commits") for verb in ("invalidate", "ls")
    ]


# --- when a batch ended


def test_a_batch_ended_when_its_commit_was_written(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0])
    os.utime(root / "commits" / "0", (1_767_225_600, 1_767_225_600))
    assert SparkCheckpoint(str(root)).ended_at(0) == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert SparkCheckpoint(str(root)).ended_at(1) is None
    assert SparkCheckpoint(str(root), fs=TimelessFileSystem()).ended_at(0) is None
