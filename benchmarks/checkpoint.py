"""Measures how long it takes to find the newest batch of a checkpoint with many batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
from cluster import Cluster, say
from fsspec import AbstractFileSystem
from measuring import Contestant, Section, Target, interleaved

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

OURS = "ours: query, newest batch, its offsets"
LISTED = "two `ls(detail=False)`, numeric maximum"
GLOBBED = "two `glob`, numeric maximum"
LOCAL, MEMORY = "local path", "`memory://`"


def measure(cluster: Cluster, batches: int, rounds: int) -> Section:
    directory = cluster.directory / "checkpoint"
    say(f"writing a checkpoint of {batches:,} batches")
    _write_local(directory, batches)
    memory = fsspec.filesystem("memory")
    root = "/benchmarks/checkpoint"
    _write_memory(memory, root, batches)
    try:
        local = fsspec.filesystem("file")
        times = interleaved(
            [
                *_contestants(LOCAL, str(directory), local, str(directory)),
                *_contestants(MEMORY, f"memory:/{root}", memory, root),
            ],
            rounds,
        )
    finally:
        # Removing the files one by one would take this file system half an hour.
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]
        shutil.rmtree(directory)
    targets = [
        Target(
            f"Newest of {batches:,} batches on a {where}: time of two ls(detail=False)",
            times.ratio((where, OURS), (where, LISTED)),
            1.5,
            at_least=False,
        )
        for where in (LOCAL, MEMORY)
    ]
    return Section(f"Newest of {batches:,} batches in a checkpoint", times, targets)


def _contestants(where: str, location: str, fs: AbstractFileSystem, root: str) -> list[Contestant]:
    def listed() -> int:
        return _newest([fs.ls(f"{root}/{name}", detail=False) for name in ("offsets", "commits")])

    def globbed() -> int:
        return _newest([fs.glob(f"{root}/{name}/*") for name in ("offsets", "commits")])

    return [
        Contestant(where, OURS, lambda: SparkCheckpoint(location).read().batch_id),
        Contestant(where, LISTED, listed),
        Contestant(where, GLOBBED, globbed),
    ]


def _newest(listings: list[list[str]]) -> int:
    return min(max(int(name.rpartition("/")[2]) for name in names) for names in listings)


def _files(batch: int) -> dict[str, str]:
    offsets = json.dumps({"orders": {str(number): batch for number in range(4)}})
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": batch, "conf": {}})
    return {
        f"offsets/{batch}": f"v1\n{metadata}\n{offsets}",
        f"commits/{batch}": 'v1\n{"nextBatchWatermarkMs":0}',
    }


_QUERY = json.dumps({"id": "5a5a3b0e-3d5e-4c7e-9f3e-0a6a8f4f7c11"})


def _write_local(directory: Path, batches: int) -> None:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text(_QUERY)
    for batch in range(batches):
        for name, text in _files(batch).items():
            (directory / name).write_text(text)


def _write_memory(fs: AbstractFileSystem, root: str, batches: int) -> None:
    fs.makedirs(f"{root}/offsets")
    fs.makedirs(f"{root}/commits")
    fs.pipe_file(f"{root}/metadata", _QUERY.encode())
    for batch in range(batches):
        for name, text in _files(batch).items():
            fs.pipe_file(f"{root}/{name}", text.encode())
