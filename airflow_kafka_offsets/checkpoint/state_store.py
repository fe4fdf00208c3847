"""
The state files of a query, in ``state/<operator>/<partition>/``; a join has one directory level more.

After batch N the state has version N + 1. ``4.delta`` or ``4.changelog`` contains the changes of version 4,
``4.snapshot`` or ``4.zip`` its whole state. The second format of the store (Spark 4.0) adds an id:
``4_<uuid>.zip``. To load a version, Spark reads the newest whole state up to it and all later changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.storage import may_list_late

_NUMBER = re.compile(r"[0-9]+")
_FIRST = ("state/0/_metadata/metadata", "state/0/0/_metadata/schema")
"""Files that Spark writes once, before the first batch with state ends; some versions write only one."""
_VERSION = re.compile(r"([0-9]+)(_[^.]*)?\.(delta|changelog|snapshot|zip)")
# Suffixes of files with the whole state, of the HDFS-backed store and of RocksDB.
_WHOLE = ("snapshot", "zip")

StateFiles = Mapping[int, Mapping[int, Mapping[str, frozenset[str]]]]
"""
Operator -> partition -> store -> file names. A store is a directory below the partition, ``""`` except for a
join.
"""


def is_stateful(checkpoint: SparkCheckpoint) -> bool:
    """Whether the query keeps state."""
    if checkpoint.list_names("state"):
        return True
    return may_list_late(checkpoint.fs) and any(checkpoint.read_file(path) is not None for path in _FIRST)


def read_state(checkpoint: SparkCheckpoint) -> StateFiles:
    """List the files of a query's state, each directory once."""
    return {
        operator: {
            partition: dict(_stores(checkpoint, f"state/{operator}/{partition}"))
            for partition in _numbers(checkpoint, f"state/{operator}")
        }
        for operator in _numbers(checkpoint, "state")
    }


def loadable_versions(state: StateFiles, versions: Iterable[int]) -> list[int]:
    """Return the versions that Spark can load in every operator, partition and store."""
    left = sorted(versions) if state else []
    for partitions in state.values():
        if not partitions or max(partitions) >= len(partitions):
            return []  # a partition is missing
        stores = {
            store
            for partition in partitions.values()
            for store, names in partition.items()
            if any(_VERSION.fullmatch(name) for name in names)
        }
        for partition in partitions.values():
            for store in stores or {""}:
                loadable = _loadable(partition.get(store, ()))
                left = [version for version in left if version in loadable]
    return left


def snapshots_after(state: StateFiles, version: int) -> tuple[str, ...]:
    """
    Return the files with the whole state of later versions that Spark can create again.

    A query that runs its batches again writes the changes of each version again, but not the whole states:
    Spark creates those from time to time in the background. It would then load an old whole state instead of
    the new changes. A whole state without a file of changes is the only copy of its version; Spark writes
    this kind with each batch, and so overwrites the old one.
    """
    found = []
    for operator, partitions in state.items():
        for partition, stores in partitions.items():
            for store, names in stores.items():
                for name in names:
                    number, _, kind = name.partition(".")
                    if kind not in _WHOLE or not _NUMBER.fullmatch(number) or int(number) <= version:
                        continue
                    changes = "delta" if kind == "snapshot" else "changelog"
                    if f"{number}.{changes}" in names:
                        directory = f"state/{operator}/{partition}"
                        found.append("/".join(filter(None, (directory, store, name))))
    return tuple(found)


def _loadable(names: Iterable[str]) -> set[int]:
    found = [match for name in names if (match := _VERSION.fullmatch(name))]
    whole = {int(match[1]) for match in found if match[3] in _WHOLE}
    loadable = set(whole)
    # The state before the first batch is empty and needs no file.
    for version in sorted({int(match[1]) for match in found} - whole):
        if version == 1 or version - 1 in loadable:
            loadable.add(version)
    return loadable


def _numbers(checkpoint: SparkCheckpoint, directory: str) -> list[int]:
    return sorted(int(name) for name in checkpoint.list_names(directory) if _NUMBER.fullmatch(name))


def _stores(checkpoint: SparkCheckpoint, directory: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Return the names in a partition's directory, and in the directories of a join's stores below it."""
    names = frozenset(checkpoint.list_names(directory))
    yield "", names
    for name in sorted(names):
        if "." not in name and not name.startswith("_"):
            yield name, frozenset(checkpoint.list_names(f"{directory}/{name}"))
