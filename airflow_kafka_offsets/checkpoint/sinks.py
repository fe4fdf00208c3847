"""Finds the batches of a query that its sink has recorded: a file sink, Delta Lake, Iceberg or Hudi."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from fsspec import AbstractFileSystem

from airflow_kafka_offsets.checkpoint.log import format_error
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.sink_logs import delta_batch, hudi_batch, hudi_layout, iceberg_table
from airflow_kafka_offsets.errors import CheckpointFormatError
from airflow_kafka_offsets.model.checkpoint_policy import RECORDING_SINKS
from airflow_kafka_offsets.model.location import hadoop_path, split_scheme
from airflow_kafka_offsets.storage import list_names, may_list_late, open_location, read_bytes

MOST_FILES = 1_000

# A file sink records batch 9 in 9 or, together with all earlier batches, in 9.compact.
_FILE = re.compile(r"([0-9]{1,18})(?:\.compact)?")
# Delta pads versions to 20 digits.
_DELTA = re.compile(r"([0-9]{20})\.json")
# v3.metadata.json of a Hadoop catalog, 00003-<uuid>.metadata.json of any other; each may be compressed.
_ICEBERG = re.compile(r"(v?)([0-9]{1,18})(?:-[^/]+?)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
# Finished instants only; in layout 2 a name has its begin and end times.
_HUDI = {
    1: re.compile(r"[0-9]+\.(?:commit|deltacommit|replacecommit)"),
    2: re.compile(r"[0-9]+_[0-9]+\.(?:commit|deltacommit|replacecommit)"),
}


class _Directory(NamedTuple):
    """A directory in which a sink records batches."""

    fs: AbstractFileSystem
    path: str

    def names(self) -> list[str]:
        return list_names(self.fs, self.path)

    def inner(self, name: str) -> _Directory:
        return _Directory(self.fs, f"{self.path}/{name}")

    def read(self, name: str) -> bytes | None:
        return read_bytes(self.fs, f"{self.path}/{name}")

    def file(self, name: str) -> tuple[bytes, str]:
        """Return the content and the path of a file that must exist."""
        data, path = self.read(name), f"{self.path}/{name}"
        if data is None:
            raise CheckpointFormatError(f"{path}: does not exist")
        return data, path


def newest_recorded_batch(
    checkpoint: SparkCheckpoint, query_id: str, sink: str, location: str, first: int
) -> int | None:
    """
    Return the newest batch of a query that its sink has recorded, ``None`` if it has recorded none.

    :param sink: one of :data:`~airflow_kafka_offsets.model.checkpoint_policy.RECORDING_SINKS`.
    :param location: directory that the sink writes to. If it is on the same kind of storage as the
        checkpoint, it is read with the checkpoint's credentials.
    :param first: the batch id that the move would use again.
    :raises CheckpointFormatError: if the newest batch cannot be determined.
    """
    # Other kinds of storage do not know the checkpoint's credentials, and must not receive them.
    same = split_scheme(location)[0] == split_scheme(checkpoint.location)[0]
    fs, path = open_location(location, checkpoint.fs if same else None)
    log = _Directory(fs, f"{hadoop_path(path)}/{RECORDING_SINKS[sink]}")
    read: dict[str, Callable[[], int | None]] = {
        "file": lambda: _file_sink(log, first),
        "delta": lambda: _delta(log, query_id),
        "iceberg": lambda: _iceberg(log, query_id),
        "hudi": lambda: _hudi(log),
    }
    return read[sink]()


def _file_sink(log: _Directory, first: int) -> int | None:
    names = set(log.names())
    if may_list_late(log.fs):
        asked = {f"{number}{kind}" for number in (first - 1, first) for kind in ("", ".compact")}
        names |= {name for name in asked - names if log.read(name) is not None}
    return max((int(found[1]) for name in names if (found := _FILE.fullmatch(name))), default=None)


def _delta(log: _Directory, query_id: str) -> int | None:
    """Return the query's newest batch in a Delta table's commits; its Parquet checkpoints are not read."""
    names = log.names()
    for directory in {"_commits", "_staged_commits"}.intersection(names):
        if any(not name.startswith(".") for name in log.inner(directory).names()):
            raise CheckpointFormatError(
                f"{log.path}/{directory}: is not empty, so a catalog keeps the table's newest commits; "
                "expected all of them in _delta_log"
            )
    newest = max((int(found[1]) for name in names if (found := _DELTA.fullmatch(name))), default=None)
    if newest is None:
        return None
    if may_list_late(log.fs):
        while log.read(f"{newest + 1:020}.json") is not None:
            newest += 1
    for version in range(newest, max(newest - MOST_FILES, -1), -1):
        batch_id = delta_batch(*log.file(f"{version:020}.json"), query_id)
        if batch_id is not None:
            return batch_id
    if newest < MOST_FILES:
        return None
    raise CheckpointFormatError(
        f"{log.path}: the newest {MOST_FILES:,} commits have no batch of the query; expected one"
    )


def _iceberg(log: _Directory, query_id: str) -> int | None:
    """
    Return the newest batch of a query in the metadata of an Iceberg table.

    Only the catalog knows the current metadata file. The file with the highest number is it, or was made from
    it, or is of another branch of the catalog: files that it does not list as earlier ones count too.
    """
    numbers: dict[str, int] = {}
    kinds = set()
    for name in log.names():
        if ".metadata.json" not in name or name.startswith("."):
            continue
        found = _ICEBERG.fullmatch(name)
        if found is None:
            raise CheckpointFormatError(f"{log.path}/{name}: found a name that Iceberg does not use")
        kinds.add(found[1])
        numbers[name] = int(found[2])
    if len(kinds) > 1 or list(numbers.values()).count(0) > 1:
        raise format_error(log.path, "the metadata of two tables or catalogs", "those of one")
    if not numbers:
        return None
    newest = max(numbers, key=lambda name: numbers[name])
    if "v" in kinds and may_list_late(log.fs):
        while log.read(unlisted := f"v{numbers[newest] + 1}.metadata.json") is not None:
            numbers[unlisted] = numbers[newest] + 1
            newest = unlisted
    table = iceberg_table(*log.file(newest), query_id)
    oldest = min(numbers[name] for name in numbers if name == newest or name in table.earlier)
    others = sorted(name for name in numbers.keys() - table.earlier - {newest} if numbers[name] >= oldest)
    if len(others) > MOST_FILES:
        unlisted = f"{len(others):,} files that {newest} does not list as earlier ones"
        raise format_error(log.path, unlisted, f"at most {MOST_FILES:,}")
    batches = [iceberg_table(*log.file(name), query_id).batch_id for name in others]
    return max((batch for batch in (table.batch_id, *batches) if batch is not None), default=None)


def _hudi(log: _Directory) -> int | None:
    """Return the newest batch of any query in a Hudi table's active timeline: Hudi skips all up to it."""
    name = "hoodie.properties"
    data = log.read(name)
    if data is None:
        return None
    layout = hudi_layout(data, f"{log.path}/{name}")
    timeline = log if layout == 1 else log.inner("timeline")
    commits = [name for name in timeline.names() if _HUDI[layout].fullmatch(name)]
    if len(commits) > MOST_FILES:
        raise format_error(timeline.path, f"{len(commits):,} commits", f"at most {MOST_FILES:,}")
    found = [hudi_batch(*timeline.file(name)) for name in commits]
    return max((batch for batch in found if batch is not None), default=None)
