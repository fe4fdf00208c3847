from __future__ import annotations

import json
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from checkpoint_moves import THREE, apply_plan
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.log import check_commit_log, parse_offset_log, parse_query_id
from airflow_kafka_offsets.errors import PlanRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from fsspec import AbstractFileSystem

    from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan

    Files = Callable[[Path], dict[str, bytes]]

QUERY_ID = "975d5cb5-daf7-40c6-ad83-ae84395a7b2a"


def _offset_log(offset: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{{}}}}\n{{"orders":{{"0":{offset}}}}}'


@pytest.fixture
def offset_log() -> Callable[[int], str]:
    """The offset log of one Kafka source that reads partition 0 of orders."""
    return _offset_log


@pytest.fixture
def write_checkpoint() -> Callable[..., str]:
    """Writes a checkpoint as Spark would; offset logs are given as text or as an offset of orders-0."""

    def write(
        fs: AbstractFileSystem, root: str, offsets: Mapping[int, str | int], commits: Iterable[int]
    ) -> str:
        files = {"metadata": json.dumps({"id": QUERY_ID})}
        for batch_id, entry in offsets.items():
            files[f"offsets/{batch_id}"] = entry if isinstance(entry, str) else _offset_log(entry)
        for batch_id in commits:
            files[f"commits/{batch_id}"] = 'v1\n{"nextBatchWatermarkMs":0}'
        for directory in ("offsets", "commits"):
            fs.makedirs(f"{root}/{directory}", exist_ok=True)
        for path, text in files.items():
            fs.pipe_file(f"{root}/{path}", text.encode())
        return root

    return write


@pytest.fixture
def checkpoint(tmp_path: Path, write_checkpoint: Callable[..., str]) -> Callable[..., Path]:
    """Writes a checkpoint into this test's directory: checkpoint({0: 5}, [0])."""
    from fsspec.implementations.local import LocalFileSystem

    def write(offsets: Mapping[int, str | int], commits: Iterable[int]) -> Path:
        write_checkpoint(LocalFileSystem(), str(tmp_path / "checkpoint"), offsets, commits)
        return tmp_path / "checkpoint"

    return write


@pytest.fixture(scope="module")
def storage_options() -> Iterator[dict[str, Any]]:
    """What fsspec needs for an S3 server on the loopback, with the bucket lake in it."""
    s3fs = pytest.importorskip("s3fs")
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": f"http://{host}:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    try:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="lake")
        yield options
    finally:
        server.stop()


def _files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    """All files below a directory, hidden ones too: path -> content."""
    return _files


def _hadoop_checksum(data: bytes) -> bytes:
    chunks = [data[start : start + 512] for start in range(0, len(data), 512)]
    return b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", zlib.crc32(c)) for c in chunks)


@pytest.fixture
def with_checksums() -> Callable[[Path], Path]:
    """Writes Hadoop's checksums beside the files of a checkpoint, as Spark does on local file systems."""

    def write(root: Path) -> Path:
        for directory in ("offsets", "commits"):
            for path in (root / directory).glob("[0-9]*"):
                path.with_name(f".{path.name}.crc").write_bytes(_hadoop_checksum(path.read_bytes()))
        return root

    return write


def _numbered(found: Mapping[str, bytes], directory: str) -> dict[int, bytes]:
    names = {path: re.fullmatch(rf"{directory}/([0-9]+)", path) for path in found}
    return {int(name[1]): found[path] for path, name in names.items() if name}


@pytest.fixture
def spark_starts() -> Callable[[Path], tuple[int, int]]:
    """
    Asserts that Spark would start from a checkpoint; returns its newest committed and its newest planned
    batch.

    Spark reads the newest file of offsets and the one before it, runs a batch again that has no commit, and
    refuses a file whose checksum does not fit, or a checksum where a new file is to be written.
    """

    def check(root: Path) -> tuple[int, int]:
        found = _files(root)
        parse_query_id(found["metadata"].decode(), "metadata")
        offsets, commits = _numbered(found, "offsets"), _numbered(found, "commits")
        planned, committed = max(offsets), max(commits)
        assert planned in (committed, committed + 1), f"offsets up to {planned}, commits up to {committed}"
        assert planned == 0 or planned - 1 in offsets, f"offsets/{planned - 1} is not there"
        for number, data in offsets.items():
            parse_offset_log(data.decode(), f"offsets/{number}")
        for number, data in commits.items():
            check_commit_log(data.decode(), f"commits/{number}")
        for path, data in found.items():
            directory, _, name = path.rpartition("/")
            if directory in ("offsets", "commits"):
                assert re.fullmatch(r"[0-9]+|\..+\.(crc|tmp)", name), (
                    f"{path} is not a file that Spark would skip"
                )
                if checked := re.fullmatch(r"\.([0-9]+)\.crc", name):
                    beside = found.get(f"{directory}/{checked[1]}")
                    assert beside is not None, f"{path}: the file that it belongs to is gone"
                    assert data == _hadoop_checksum(beside), f"{path} is of another content"
        return committed, planned

    return check


@pytest.fixture
def three(checkpoint: Callable[..., Path], with_checksums: Callable[[Path], Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2."""
    return with_checksums(checkpoint(THREE, [0, 1, 2]))


@pytest.fixture
def begun(checkpoint: Callable[..., Path], with_checksums: Callable[[Path], Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2, and was stopped in batch 3."""
    return with_checksums(checkpoint(THREE | {3: 9}, [0, 1, 2]))


@pytest.fixture
def assert_refused(files: Files) -> Callable[..., None]:
    """assert_refused(root, plan, *texts): it has these refusals and no others, and nothing is written."""

    def check(root: Path, checkpoint_plan: CheckpointPlan, *says: str) -> None:
        before = files(root)
        with pytest.raises(PlanRefusedError) as refused:
            apply_plan(root, checkpoint_plan)
        assert len(refused.value.refusals) == len(says), refused.value.refusals
        for text, refusal in zip(says, refused.value.refusals, strict=True):
            assert text in refusal
        assert files(root) == before

    return check


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
