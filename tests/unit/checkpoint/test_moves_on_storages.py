"""Files are written, replaced and removed on every kind of storage."""

from __future__ import annotations

import time
import uuid
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from checkpoint_moves import DISCARD, ORDERS_0, THREE, TimelessFileSystem, files, write_checkpoint
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves, archive_names
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, StorageError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.storage import modified_at, remove_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Files = Callable[[Path], dict[str, bytes]]


class _RenamingFileSystem(MemoryFileSystem):
    """A storage on which a write may be seen in part, and a rename may not."""

    protocol: tuple[str, ...] = ("renaming",)
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        self.written.append(path.rpartition("/")[2])
        super().pipe_file(path, value, *args, **kwargs)


@pytest.fixture(params=["local", "memory", "renaming", "s3"])
def storage(request, tmp_path, memory):
    """A file system, a directory on it, and the URI of that."""
    if request.param == "local":
        return LocalFileSystem(), str(tmp_path / "on"), str(tmp_path / "on")
    if request.param == "s3":
        s3fs = pytest.importorskip("s3fs")
        root = f"lake/{uuid.uuid4()}"
        return s3fs.S3FileSystem(**request.getfixturevalue("storage_options")), root, f"s3a://{root}"
    fs = memory if request.param == "memory" else _RenamingFileSystem()
    return fs, "/lake/on", "memory://lake/on"


def test_a_file_is_written_replaced_and_removed_on_every_storage(storage):
    fs, root, _ = storage
    path = f"{root}/new/directory/7"
    replace_file(fs, path, b"first")
    assert fs.cat_file(path) == b"first"
    replace_file(fs, path, b"second, longer")
    assert fs.cat_file(path) == b"second, longer"
    fs.invalidate_cache()
    assert [name.rpartition("/")[2] for name in fs.ls(f"{root}/new/directory", detail=False)] == ["7"]
    remove_file(fs, path)
    remove_file(fs, path)
    assert not fs.exists(path)


def test_the_time_of_a_write_is_told_with_its_zone(storage):
    fs, root, _ = storage
    assert modified_at(fs, f"{root}/7") is None
    replace_file(fs, f"{root}/7", b"text")
    found = modified_at(fs, f"{root}/7")
    assert found is not None
    assert found.tzinfo is not None
    assert abs(found.timestamp() - time.time()) < 60


def test_a_storage_without_times_tells_none(tmp_path):
    (tmp_path / "7").write_bytes(b"text")
    assert modified_at(TimelessFileSystem(), str(tmp_path / "7")) is None


def test_a_file_takes_its_name_by_a_rename_where_a_write_could_be_seen_in_part(memory):
    fs = _RenamingFileSystem()
    replace_file(fs, "/lake/offsets/7", b"text")
    (written,) = fs.written
    assert written.startswith(".7.")
    assert written.endswith(".tmp")


# Moves on S3 are in tests/integration/object_stores/.
NOT_S3 = pytest.mark.parametrize("storage", ["local", "memory", "renaming"], indirect=True)


@NOT_S3
def test_a_seek_and_its_restore_on_every_storage(storage):
    fs, root, location = storage
    write_checkpoint(fs, root, THREE | {3: 9}, [0, 1, 2])
    before = {path: fs.cat_file(path) for path in fs.find(root)}
    spark = SparkCheckpoint(location, fs=fs)
    policy = CheckpointPolicy("discard", "kafka")

    checkpoint_plan = plan_seek(spark, {"0": {ORDERS_0: 3}}, policy)
    apply_checkpoint_plan(spark, checkpoint_plan, quiet_period=0.2)

    state = spark.read()
    assert (state.batch_id, state.pending_batch_id) == (2, None)
    assert state.kafka_offsets == {"0": {ORDERS_0: 3}}
    assert [archive.name for archive in ArchivedMoves(spark)] == ["0001-seek"]

    apply_checkpoint_plan(spark, plan_checkpoint_restore(spark), quiet_period=0)

    fs.invalidate_cache()
    after = {path: fs.cat_file(path) for path in fs.find(root) if "_kafka_offsets" not in path}
    assert after == before
    assert [archive.undone for archive in ArchivedMoves(spark)] == [True, False]


@NOT_S3
def test_a_truncation_and_its_restore_on_every_storage(storage):
    fs, root, location = storage
    write_checkpoint(fs, root, THREE, [0, 1, 2])
    before = {path: fs.cat_file(path) for path in fs.find(root)}
    spark = SparkCheckpoint(location, fs=fs)
    apply_checkpoint_plan(spark, plan_truncate(spark, 0, CheckpointPolicy(sink="noop")), quiet_period=0)
    assert (spark.batches("offsets"), spark.batches("commits")) == ({0}, {0})
    apply_checkpoint_plan(spark, plan_checkpoint_restore(spark), quiet_period=0)
    fs.invalidate_cache()
    assert {path: fs.cat_file(path) for path in fs.find(root) if "_kafka_offsets" not in path} == before


class _KeepsFileSystem(_RenamingFileSystem):
    """
    A storage whose rename leaves a file that is there as it is, without an error, as HDFS over HTTP does.
    """

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        if not self.exists(path2):
            super().mv(path1, path2, *args, **kwargs)


class _RefusesFileSystem(_KeepsFileSystem):
    """A storage whose rename does not take a name that is there, as that of Databricks."""

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, *args, **kwargs)


class _WebHdfs(_KeepsFileSystem):
    """HDFS over HTTP, which replaces a file if it is asked to."""

    protocol = ("webhdfs", "webHDFS")

    def _call(self, op: str, *, method: str, path: str, destination: str, renameoptions: str) -> None:
        assert (op, method, renameoptions) == ("RENAME", "put", "OVERWRITE")
        self.store[destination] = self.store.pop(path)


def test_a_file_is_replaced_on_hdfs_over_http(memory):
    fs = _WebHdfs()
    for data in (b"first", b"second"):
        replace_file(fs, "/lake/offsets/7", data)
        assert fs.cat_file("/lake/offsets/7") == data
    assert fs.ls("/lake/offsets", detail=False) == ["/lake/offsets/7"]


@pytest.mark.parametrize("driver", [_KeepsFileSystem, _RefusesFileSystem])
def test_a_seek_where_a_rename_does_not_replace_fails_and_leaves_the_checkpoint_as_it_was(driver, memory):
    fs = driver()
    root = write_checkpoint(fs, "/lake/on", THREE, [0, 1, 2])
    spark = SparkCheckpoint("memory://lake/on", fs=fs)
    before = {path: fs.cat_file(path) for path in fs.find(root)}
    with pytest.raises((CheckpointError, StorageError)):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0)
    assert before.items() <= {path: fs.cat_file(path) for path in fs.find(root)}.items()
    assert spark.read().kafka_offsets == {"0": {ORDERS_0: 7}}


def test_a_storage_that_may_not_be_written_to_is_named_and_nothing_is_changed(three):
    class Forbidden(LocalFileSystem):
        cachable = False

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise PermissionError("Access Denied")

    spark = SparkCheckpoint(str(three), fs=Forbidden())
    before = files(three)

    with pytest.raises(StorageError, match=r"no permission to change it .Access Denied"):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0)
    assert files(three) == before


class _ForgetfulFileSystem(_RenamingFileSystem):
    """A storage that says that it has carried out what it has not, for one name."""

    forgets = ""

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        if path2.endswith(self.forgets):
            self.rm_file(path1)
        else:
            super().mv(path1, path2, *args, **kwargs)

    def rm_file(self, path: str) -> None:
        if not path.endswith(self.forgets):
            super().rm_file(path)


@pytest.mark.parametrize(
    ("forgets", "says"),
    [
        ("offsets/2", "the offsets read back after the move"),
        (
            "offsets/3",
            "offsets/3: read back after the move, the file still exists: .* the checkpoint may be moved in "
            "part: running it again finishes the rest, restoring archive 0001-seek takes the move back",
        ),
    ],
)
def test_a_move_that_the_storage_acknowledges_and_does_not_make_is_an_error(forgets, says, memory):
    fs = _ForgetfulFileSystem()
    write_checkpoint(fs, "/lake/on", THREE | {3: 9}, [0, 1, 2])
    spark = SparkCheckpoint("memory://lake/on", fs=fs)
    checkpoint_plan = plan_seek(spark, {"0": {ORDERS_0: 3}}, CheckpointPolicy(**DISCARD))
    fs.forgets = forgets
    committed: list[str] = []
    with pytest.raises((CheckpointError, StorageError), match=says):
        apply_checkpoint_plan(
            spark, checkpoint_plan, quiet_period=0, commit=lambda: committed.append("group")
        )
    assert not committed


class _LateFileSystem(MemoryFileSystem):
    """An object store whose listings do not show some moves yet."""

    protocol: tuple[str, ...] = ("s3",)
    cachable = False

    def __init__(self, *unlisted: str) -> None:
        super().__init__()
        self.unlisted = unlisted
        self.reads = 0

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return [name for name in super().ls(path, *args, **kwargs) if not name.endswith(self.unlisted)]

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return super().cat_file(path, *args, **kwargs)


def test_a_move_that_is_not_listed_yet_is_known(memory):
    fs = _LateFileSystem("0001-seek")
    write_checkpoint(fs, "/lake/on", THREE, [0, 1, 2])
    spark = SparkCheckpoint("memory://lake/on", fs=fs)
    apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0)
    assert archive_names(spark, exact=False) == []
    assert archive_names(spark) == ["0001-seek"]


def test_archives_that_were_deleted_are_not_looked_up_one_by_one(memory):
    kept = ["0003-failover", "12344-seek", "12345-truncate", "12346-seek", "12347-seek"]
    fs = _LateFileSystem("12344-seek", "12345-truncate", "12347-seek")
    for name in kept:
        fs.pipe(f"/lake/on/_kafka_offsets/{name}/manifest.json", b"{}")
    assert archive_names(SparkCheckpoint("memory://lake/on", fs=fs)) == kept
    assert fs.reads < 40


@pytest.mark.parametrize(("planned", "committed"), [(1_000, 0), (0, 1_000)])
def test_batches_without_the_other_directory_are_not_looked_up_one_by_one(memory, planned, committed):
    fs = _LateFileSystem("no name")
    write_checkpoint(fs, "/lake/on", dict.fromkeys(range(planned), 5), range(committed))
    with pytest.raises(CheckpointFormatError) if committed else nullcontext():
        assert SparkCheckpoint("memory://lake/on", fs=fs).read().pending_batch_id == 999
    assert fs.reads < 40
