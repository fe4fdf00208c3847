"""
State that a query keeps beside its offsets.

State lies in ``state/<operator>/<partition>/``, for a join one directory deeper. After batch N it has version
N + 1: ``4.delta`` or ``4.changelog`` holds what the batch changed, ``4.snapshot`` or ``4.zip`` the state as a
whole, and with the second format of the store (Spark 4.0) the name has an id, ``4_<uuid>.zip``. Spark loads a
version from the newest whole state up to it and all changes since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.storage import list_names, may_list_late

_NUMBER = re.compile(r"[0-9]+")
_FIRST = ("state/0/_metadata/metadata", "state/0/0/_metadata/schema")
"""Files that Spark writes once, before the first batch with state ends; not every version writes both."""
_VERSION = re.compile(r"([0-9]+)(_[^.]*)?\.(delta|changelog|snapshot|zip)")
# How a file with the state as a whole ends, of the HDFS-backed store and of RocksDB.
_WHOLE = ("snapshot", "zip")


def is_stateful(checkpoint: SparkCheckpoint) -> bool:
    """Whether the query keeps state."""
    if list_names(checkpoint.fs, f"{checkpoint.root}/state"):
        return True
    return may_list_late(checkpoint.fs) and any(checkpoint.read_file(path) is not None for path in _FIRST)


@dataclass(frozen=True)
class StateStores:
    """
    The files that hold a query's state.

    :param operators: for each operator its partitions by number, each with its stores: directory below the
        partition's (``""`` but for a join) -> the names in it.
    """

    operators: Mapping[int, Mapping[int, Mapping[str, frozenset[str]]]]

    @classmethod
    def read(cls, checkpoint: SparkCheckpoint) -> StateStores:
        """List the state of a query, each directory once."""
        return cls(
            {
                operator: {
                    partition: dict(_stores(checkpoint, f"state/{operator}/{partition}"))
                    for partition in _numbers(checkpoint, f"state/{operator}")
                }
                for operator in _numbers(checkpoint, "state")
            }
        )

    def loadable_versions(self, versions: Iterable[int]) -> list[int]:
        """Return the versions that Spark can load: in every operator, partition and store."""
        left = sorted(versions) if self.operators else []
        for partitions in self.operators.values():
            if not partitions or max(partitions) >= len(partitions):
                return []  # a partition is gone
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

    def snapshots_after(self, version: int) -> tuple[str, ...]:
        """
        Return the files that hold the state as a whole at later versions, and that can be made again.

        A query that plans its batches again writes the changes of each version again, but not these: Spark
        makes them now and then in the background, and would load an old one in place of the new changes. One
        without the file of its changes is the only copy of its version; Spark writes such a file with each
        batch, and so overwrites it.
        """
        found = []
        for operator, partitions in self.operators.items():
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
    """Return the versions that can be loaded from a store's files."""
    found = [match for name in names if (match := _VERSION.fullmatch(name))]
    whole = {int(match[1]) for match in found if match[3] in _WHOLE}
    loadable = set(whole)
    # Before the first batch the state is empty, which needs no file.
    for version in sorted({int(match[1]) for match in found} - whole):
        if version == 1 or version - 1 in loadable:
            loadable.add(version)
    return loadable


def _numbers(checkpoint: SparkCheckpoint, directory: str) -> list[int]:
    names = list_names(checkpoint.fs, f"{checkpoint.root}/{directory}") or []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _stores(checkpoint: SparkCheckpoint, directory: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Return the names in a partition's directory, and those in the stores of a join below it."""
    names = frozenset(list_names(checkpoint.fs, f"{checkpoint.root}/{directory}") or ())
    yield "", names
    for name in sorted(names):
        if "." not in name and not name.startswith("_"):
            deeper = list_names(checkpoint.fs, f"{checkpoint.root}/{directory}/{name}")
            yield name, frozenset(deeper or ())
