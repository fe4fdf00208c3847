"""A checkpoint that is written as a Spark query writes it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import Offsets

QUERY_ID = "11111111-2222-3333-4444-555555555555"
NEW_QUERY_ID = "99999999-2222-3333-4444-555555555555"
COMMIT_LOG = 'v1\n{"nextBatchWatermarkMs":0}'


def offset_log(*sources: Mapping[str, Mapping[int, int]] | str, at: float | None = None) -> str:
    """
    Return the file of a batch: of each source {topic: {partition: offset}}, or the line as it is.

    :param at: when the batch was planned, in seconds since 1970; by default now.
    """
    planned = int((time.time() if at is None else at) * 1_000)
    head = {"batchWatermarkMs": 0, "batchTimestampMs": planned, "conf": {}}
    lines = [line if isinstance(line, str) else json.dumps(line) for line in (head, *sources)]
    return "\n".join(["v1", *lines])


class Query:
    """Writes a checkpoint as a Spark query does, with Hadoop's checksums beside the files."""

    def __init__(self, root: Path, query_id: str = QUERY_ID) -> None:
        self.root = root
        self.location = str(root)
        self.write("metadata", json.dumps({"id": query_id}))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + path.encode())

    def start_over(self) -> Query:
        """Remove the files of the query, but not the archives of its moves; return a new one in its place."""
        for directory in ("offsets", "commits"):
            shutil.rmtree(self.root / directory)
        return Query(self.root, NEW_QUERY_ID)

    def plan(
        self, batch: int, *sources: Mapping[str, Mapping[int, int]] | str, at: float | None = None
    ) -> None:
        """Begin a batch that ends at these offsets, {topic: {partition: offset}} for each source."""
        self.write(f"offsets/{batch}", offset_log(*sources, at=at))

    def finish(self, batch: int) -> None:
        """Finish a batch that has begun."""
        self.write(f"commits/{batch}", COMMIT_LOG)

    def run(
        self, batch: int, *sources: Mapping[str, Mapping[int, int]] | str, at: float | None = None
    ) -> None:
        """Begin a batch and finish it."""
        self.plan(batch, *sources, at=at)
        self.finish(batch)

    def files(self) -> dict[str, bytes]:
        """Everything that is there."""
        files = (file for file in self.root.rglob("*") if file.is_file())
        return {str(file.relative_to(self.root)): file.read_bytes() for file in files}

    def sparks_files(self) -> dict[str, bytes]:
        """What Spark reads: neither checksums nor archives."""
        return {
            name: data
            for name, data in self.files().items()
            if not name.endswith(".crc") and not name.startswith("_kafka_offsets/")
        }

    def stands(self, source: str = "0") -> dict[int, int]:
        """{partition: offset} of a source with one topic."""
        offsets: Offsets = SparkCheckpoint(self.location).read().kafka_offsets[source]
        return {tp.partition: offset for tp, offset in offsets.items()}
