"""Checkpoints with one Kafka source, which reads partition 0 of orders, and their moves."""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.log import check_commit_log, parse_offset_log, parse_query_id
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fsspec import AbstractFileSystem

    from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
    from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan

QUERY_ID = "975d5cb5-daf7-40c6-ad83-ae84395a7b2a"
RECORDED = sorted(path.parent for path in (Path(__file__).parents[1] / "checkpoints").glob("*/expected.json"))
"""Directories of checkpoints that Spark 3.5.4, 4.0.0 and 4.2.0 wrote."""
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{}}'
"""Second line of an offset log."""
ORDERS_0 = TopicPartition("orders", 0)
THREE = {0: 5, 1: 6, 2: 7}
"""Offsets of orders-0 in the batches 0 to 2."""
DISCARD: dict[str, Any] = {"on_pending_batch": "discard", "idempotent_sink": True}


def case_of(directory: Path) -> str:
    return directory.name.split("-", 2)[2]


def offset_log(offset: int) -> str:
    """The offset log of one Kafka source that reads partition 0 of orders."""
    return f'v1\n{METADATA}\n{{"orders":{{"0":{offset}}}}}'


def write_checkpoint(
    fs: AbstractFileSystem, root: str, offsets: Mapping[int, str | int], commits: Iterable[int]
) -> str:
    """Write a checkpoint as Spark would; offset logs are given as text or as an offset of orders-0."""
    found = {"metadata": json.dumps({"id": QUERY_ID})}
    for batch_id, entry in offsets.items():
        found[f"offsets/{batch_id}"] = entry if isinstance(entry, str) else offset_log(entry)
    for batch_id in commits:
        found[f"commits/{batch_id}"] = 'v1\n{"nextBatchWatermarkMs":0}'
    for directory in ("offsets", "commits"):
        fs.makedirs(f"{root}/{directory}", exist_ok=True)
    for path, text in found.items():
        fs.pipe_file(f"{root}/{path}", text.encode())
    return root


def files(root: Path) -> dict[str, bytes]:
    """Return all files below a directory, hidden ones too: path -> content."""
    found, above = {}, len(os.path.join(root, ""))  # noqa: PTH118 - Path takes a quarter of some tests' time
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118
            with open(path, "rb") as file:  # noqa: PTH123
                found[path[above:]] = file.read()
    return dict(sorted(found.items()))


def with_checksums(root: Path) -> Path:
    """Write Hadoop's checksums beside the files of a checkpoint, as Spark does on local file systems."""
    for directory in ("offsets", "commits"):
        for path in (root / directory).glob("[0-9]*"):
            path.with_name(f".{path.name}.crc").write_bytes(_hadoop_checksum(path.read_bytes()))
    return root


def _hadoop_checksum(data: bytes) -> bytes:
    chunks = [data[start : start + 512] for start in range(0, len(data), 512)]
    return b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", zlib.crc32(c)) for c in chunks)


def spark_starts(root: Path) -> tuple[int, int]:
    """
    Assert that Spark would start from a checkpoint; return its newest committed and its newest planned batch.

    Spark reads the newest file of offsets and the one before it, runs a batch again that has no commit, and
    refuses a file whose checksum does not fit, or a checksum where a new file is to be written.
    """
    found = files(root)
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


def _numbered(found: Mapping[str, bytes], directory: str) -> dict[int, bytes]:
    names = {path: re.fullmatch(rf"{directory}/([0-9]+)", path) for path in found}
    return {int(name[1]): found[path] for path, name in names.items() if name}


def seek(root: Path, offset: int = 3, **policy: Any) -> CheckpointPlan:
    return plan_seek(SparkCheckpoint(str(root)), {"0": {ORDERS_0: offset}}, CheckpointPolicy(**policy))


def truncate(root: Path, batch_id: int, **policy: Any) -> CheckpointPlan:
    return plan_truncate(SparkCheckpoint(str(root)), batch_id, CheckpointPolicy(**policy))


def restore(root: Path, archive: str | None = None, **policy: Any) -> CheckpointPlan:
    return plan_checkpoint_restore(SparkCheckpoint(str(root)), archive, CheckpointPolicy(**policy))


def apply_plan(root: Path, checkpoint_plan: CheckpointPlan, **how: Any) -> CheckpointPlan:
    apply_checkpoint_plan(SparkCheckpoint(str(root)), checkpoint_plan, **({"quiet_period": 0} | how))
    return checkpoint_plan


def interrupt(root: Path, checkpoint_plan: CheckpointPlan, before: str = "_apply_step") -> None:
    """Apply a plan in a process that ends before a function of ``apply_move``."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_move, before, end)
        with pytest.raises(KeyboardInterrupt):
            apply_plan(root, checkpoint_plan)


def offset_of(root: Path) -> int:
    return SparkCheckpoint(str(root)).read().kafka_offsets["0"][ORDERS_0]


def sparks_own(found: dict[str, bytes]) -> dict[str, bytes]:
    """What a move must give back: everything but the archives, and checksums, which Spark does not need."""
    return {
        path: data
        for path, data in found.items()
        if not path.startswith("_kafka_offsets/") and not path.endswith(".crc")
    }


def kept_by(checkpoint: SparkCheckpoint, token: str) -> ArchivedMove | None:
    """The archive of a run's newest move that was not taken back."""
    mine = [each for each in ArchivedMoves(checkpoint) if each.made_by.token == token and not each.undone]
    return mine[-1] if mine else None


class TimelessFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    cachable = False

    def modified(self, path: str) -> Any:
        raise NotImplementedError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[Mapping[int, str | int], Iterable[int]], Path]:
    """Writes a checkpoint into this test's directory: checkpoint({0: 5}, [0])."""

    def write(offsets: Mapping[int, str | int], commits: Iterable[int]) -> Path:
        write_checkpoint(LocalFileSystem(), str(tmp_path / "checkpoint"), offsets, commits)
        return tmp_path / "checkpoint"

    return write


@pytest.fixture
def three(checkpoint: Callable[..., Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2."""
    return with_checksums(checkpoint(THREE, [0, 1, 2]))


@pytest.fixture
def begun(checkpoint: Callable[..., Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2, and was stopped in batch 3."""
    return with_checksums(checkpoint(THREE | {3: 9}, [0, 1, 2]))
