from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from fsspec import AbstractFileSystem

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
