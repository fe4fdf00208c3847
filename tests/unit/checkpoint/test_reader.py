from __future__ import annotations

import json
import os
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointSource, CheckpointState
from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, CheckpointNotFoundError
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

QUERY_ID = "975d5cb5-daf7-40c6-ad83-ae84395a7b2a"
ORDERS_0 = TopicPartition("orders", 0)
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{}}'


def read(root: Path) -> CheckpointState:
    return SparkCheckpoint(str(root)).read()


# --- which batch


def test_any_batch_that_is_kept_can_be_read_and_one_that_is_not_is_named(
    checkpoint: Callable[..., Path],
) -> None:
    kept = SparkCheckpoint(str(checkpoint({3: 5, 4: 6, 5: 9}, [3, 4])))
    assert [kept.entry(batch).kafka_offsets for batch in (3, 5)] == [
        {"0": {ORDERS_0: 5}},
        {"0": {ORDERS_0: 9}},
    ]
    with pytest.raises(
        CheckpointError, match="offsets/2: does not exist; expected a batch that Spark has planned"
    ):
        kept.entry(2)


def test_the_committed_batch_is_the_highest_in_both_directories(checkpoint: Callable[..., Path]) -> None:
    state = read(checkpoint({0: 5, 1: 6, 2: 9}, [0, 1]))

    assert state == CheckpointState(
        location=state.location,
        query_id=QUERY_ID,
        batch_id=1,
        pending_batch_id=2,
        sources=(CheckpointSource("0", {ORDERS_0: 6}, kafka=True),),
        batch_timestamp_ms=1795228309758,
    )


def test_batches_are_compared_as_numbers(checkpoint: Callable[..., Path]) -> None:
    assert read(checkpoint({8: 8, 9: 9, 10: 10, 100: 100}, [8, 9, 10, 100])).batch_id == 100


@pytest.mark.parametrize(
    ("offsets", "commits", "batch_id", "pending"),
    [
        ([0, 1, 3, 5, 7], [0, 1, 3, 5, 7], 7, None),
        ([0, 1, 3, 5, 7], [0, 1, 3, 5], 5, 7),
        ([10, 11, 12], [10, 11, 12], 12, None),
        ([10, 11, 12, 13], [10, 12], 12, 13),
        ([0, 1, 2], [0, 2], 2, None),
        ([0, 1], [0, 1, 2], 1, None),
        ([0], [], None, 0),
        ([], [], None, None),
    ],
)
def test_gaps_and_purged_history_are_normal(
    offsets: list[int],
    commits: list[int],
    batch_id: int | None,
    pending: int | None,
    checkpoint: Callable[..., Path],
) -> None:
    state = read(checkpoint({batch: batch for batch in offsets}, commits))

    assert (state.batch_id, state.pending_batch_id) == (batch_id, pending)


def test_a_query_that_never_finished_a_batch_has_no_sources(checkpoint: Callable[..., Path]) -> None:
    state = read(checkpoint({0: 5}, []))

    assert state.sources == ()
    assert state.batch_timestamp_ms is None


def test_a_query_that_planned_nothing_yet_has_only_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY_ID}))

    assert read(tmp_path) == CheckpointState(str(tmp_path), QUERY_ID, None, None)


def test_leftovers_are_no_batches(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    leftovers = [".1.crc", ".7.0c2f.tmp", "..7.0c2f.tmp.crc", "7.tmp", "007", "-7", "7 ", "\u0667", "8.crc"]
    for directory in ("offsets", "commits"):
        for name in leftovers:
            (root / directory / name).write_text("left behind")

    state = read(root)

    assert (state.batch_id, state.pending_batch_id) == (1, None)


def test_commits_without_any_of_their_offsets_are_refused(checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(
        CheckpointFormatError, match=r"commits up to 4 and offsets 6 to 7; expected a batch .* both"
    ):
        read(checkpoint({6: 6, 7: 7}, [3, 4]))


# --- its sources


def test_sources_come_by_index_then_by_name_whatever_the_order_of_lines(
    checkpoint: Callable[..., Path],
) -> None:
    entry = f'v2\n{METADATA}\nrt:10\n10:0\norders:{{"orders":{{"0":7}}}}\n2:-'

    sources = read(checkpoint({0: entry}, [0])).sources

    assert sources == (
        CheckpointSource("2", None, kafka=False, begun=False),
        CheckpointSource("10", None, kafka=False),
        CheckpointSource("orders", {ORDERS_0: 7}, kafka=True),
        CheckpointSource("rt", None, kafka=False),
    )


def test_two_sources_of_one_topic_are_kept_apart(checkpoint: Callable[..., Path]) -> None:
    state = read(checkpoint({0: f'v1\n{METADATA}\n{{"orders":{{"0":7}}}}\n0\n{{"orders":{{"0":9}}}}'}, [0]))

    assert state.kafka_offsets == {"0": {ORDERS_0: 7}, "2": {ORDERS_0: 9}}


def test_the_state_as_json_has_offsets_in_sparks_form(checkpoint: Callable[..., Path]) -> None:
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
    [
        ("metadata", b""),
        ("metadata", b'{"id":"975d'),
        ("offsets/1", b""),
        ("offsets/1", b"v1"),
        ("offsets/1", b"v3\n{}\n0"),
        ("offsets/1", b'v1\n{}\n{"orders":{"0":4'),
        ("offsets/1", b'v1\n{}\n{"orders":{"0":-1}}'),
        ("commits/1", b""),
        ("commits/1", b"v1\n{"),
        ("commits/1", b"v9\n{}"),
    ],
)
def test_a_file_in_no_known_form_is_refused_by_name(
    file: str, content: bytes, checkpoint: Callable[..., Path]
) -> None:
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    (root / file).write_bytes(content)

    with pytest.raises(CheckpointFormatError) as refused:
        read(root)

    assert str(refused.value).startswith(f"{root}/{file}")
    assert "expected" in str(refused.value)


def test_an_older_file_in_no_known_form_does_not_matter(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: "cut off", 1: 6}, [0, 1])

    assert read(root).batch_id == 1


def not_found(location: Path) -> str:
    with pytest.raises(CheckpointNotFoundError) as refused:
        read(location)
    text = str(refused.value)
    assert text.startswith(f"{location}: found ")
    assert "; expected the directory that the Spark job has as checkpointLocation" in text
    return text.removeprefix(f"{location}: found ").partition("; expected")[0]


def test_a_directory_that_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert not_found(tmp_path / "missing" / "cp") == "nothing on this machine"


def test_a_misspelt_directory_is_told_of_the_checkpoints_beside_it(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5}, [0])

    assert not_found(root.with_name("chekpoint")) == "nothing, but beside it checkpoints (checkpoint)"


def test_an_empty_directory_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert not_found(tmp_path / "empty") == "an empty directory"


def test_a_file_is_called_so(checkpoint: Callable[..., Path]) -> None:
    assert not_found(checkpoint({0: 5}, [0]) / "offsets" / "0") == "a file"


@pytest.mark.parametrize("part", ["offsets", "commits", "metadata"])
def test_a_part_of_a_checkpoint_is_told_to_go_up(part: str, checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5}, [0])

    assert not_found(root / part) == f"the {part} of a checkpoint; give the directory above it"


def test_the_directory_above_checkpoints_names_them(
    tmp_path: Path, write_checkpoint: Callable[..., str]
) -> None:
    for name in ("orders", "payments"):
        write_checkpoint(LocalFileSystem(), str(tmp_path / name), {0: 5}, [0])
    (tmp_path / "other").mkdir()

    assert (
        not_found(tmp_path)
        == "a directory above checkpoints (orders, payments); give the checkpoint of one query"
    )


def test_a_sinks_output_is_not_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "part-00000.snappy.parquet").touch()

    assert not_found(tmp_path) == (
        "the output directory of a file sink (_spark_metadata is there), not its checkpoint"
    )


def test_a_copy_without_metadata_is_not_complete(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5}, [0])
    (root / "metadata").unlink()

    assert not_found(root) == (
        "a directory with commits, offsets but without file metadata: the copy of a checkpoint is not "
        "complete"
    )


def test_a_table_with_a_directory_metadata_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "data").mkdir()

    assert not_found(tmp_path) == "a directory with data, metadata"


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


def test_the_newest_of_50000_batches_costs_two_listings_and_three_files(
    offset_log: Callable[[int], str],
) -> None:
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


def test_a_listing_from_before_is_not_believed(write_checkpoint: Callable[..., str]) -> None:
    class Listing(MemoryFileSystem):
        """Remembers listings until told otherwise, as drivers of object stores do."""

        cachable = False
        remembered: dict[str, list[Any]]

        def __init__(self) -> None:
            super().__init__()
            self.remembered = {}

        def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
            if path not in self.remembered:
                self.remembered[path] = super().ls(path, detail=detail, **kwargs)
            return self.remembered[path]

        def invalidate_cache(self, path: str | None = None) -> None:
            self.remembered.pop(path or "", None)

    fs = Listing()
    checkpoint = SparkCheckpoint("memory://listing/cp", fs=fs)
    try:
        write_checkpoint(fs, "/listing/cp", {0: 5}, [0])
        assert checkpoint.read().batch_id == 0

        write_checkpoint(fs, "/listing/cp", {1: 6}, [1])
        assert checkpoint.read().batch_id == 1
    finally:
        MemoryFileSystem().rm("/listing", recursive=True)


@pytest.mark.parametrize("spelling", ["{path}", "file:{path}", "file://{path}", "{path}/"])
def test_a_local_checkpoint_reads_the_same_in_every_spelling(
    spelling: str, checkpoint: Callable[..., Path]
) -> None:
    location = spelling.format(path=checkpoint({0: 5}, [0]))

    state = SparkCheckpoint(location).read()

    assert state.location == location
    assert state.kafka_offsets == {"0": {ORDERS_0: 5}}


def test_a_checkpoint_in_memory_is_read(write_checkpoint: Callable[..., str]) -> None:
    fs = MemoryFileSystem()
    write_checkpoint(fs, "/in-memory/cp", {0: 5}, [0])
    try:
        assert SparkCheckpoint("memory://in-memory/cp").read().batch_id == 0
    finally:
        fs.rm("/in-memory", recursive=True)


# --- when a batch ended


def test_a_batch_ended_when_its_commit_was_written(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5, 1: 6}, [0])
    os.utime(root / "commits" / "0", (1_767_225_600, 1_767_225_600))

    assert SparkCheckpoint(str(root)).ended_at(0) == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert SparkCheckpoint(str(root)).ended_at(1) is None


def test_a_storage_that_does_not_tell_when_files_were_written_gives_none(
    checkpoint: Callable[..., Path],
) -> None:
    class Timeless(LocalFileSystem):
        def modified(self, path: str) -> datetime:
            raise NotImplementedError

    assert SparkCheckpoint(str(checkpoint({0: 5}, [0])), fs=Timeless()).ended_at(0) is None
