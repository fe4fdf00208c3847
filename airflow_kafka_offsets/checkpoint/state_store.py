"""
State that a query keeps beside its offsets.

State lies in ``state/<operator>/<partition>/``, for a join one directory deeper. After batch N it has version
N + 1: ``4.delta`` or ``4.changelog`` holds what the batch changed, ``4.snapshot`` or ``4.zip`` the state as a
whole, and with the second format of the store (Spark 4.0) the name has an id, ``4_<uuid>.zip``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.storage import list_names, may_list_late

_NUMBER = re.compile(r"[0-9]+")
_FIRST = ("state/0/_metadata/metadata", "state/0/0/_metadata/schema")
"""Files that Spark writes once, before the first batch with state ends; not every version writes both."""
_WHOLE = re.compile(r"([0-9]+)\.(snapshot|zip)")


def is_stateful(checkpoint: SparkCheckpoint) -> bool:
    """Whether the query keeps state."""
    if list_names(checkpoint.fs, f"{checkpoint.root}/state"):
        return True
    return may_list_late(checkpoint.fs) and any(checkpoint.read_file(path) is not None for path in _FIRST)


def has_version(checkpoint: SparkCheckpoint, version: int) -> bool:
    """Whether every operator has kept what its state was at a version, in its first partition."""
    wanted = re.compile(rf"{version}(_[^.]*)?\.(delta|snapshot|changelog|zip)")
    return all(
        any(
            wanted.fullmatch(name)
            for _, names in _stores(checkpoint, f"state/{operator}/0")
            for name in names
        )
        for operator in _numbers(checkpoint, "state")
    )


def whole_states_after(checkpoint: SparkCheckpoint, version: int) -> tuple[str, ...]:
    """
    Return the files that hold the state as a whole at later versions, and that can be made again.

    A query that plans its batches again writes the changes of each version again, but not these: Spark makes
    them now and then in the background, and would load an old one in place of the new changes. One without
    the file of its changes is the only copy of its version; Spark writes such a file with each batch, and so
    overwrites it.
    """
    found = []
    for operator in _numbers(checkpoint, "state"):
        for partition in _numbers(checkpoint, f"state/{operator}"):
            for directory, names in _stores(checkpoint, f"state/{operator}/{partition}"):
                for name in names:
                    whole = _WHOLE.fullmatch(name)
                    if whole is None or int(whole[1]) <= version:
                        continue
                    changes = "delta" if whole[2] == "snapshot" else "changelog"
                    if f"{whole[1]}.{changes}" in names:
                        found.append(f"{directory}/{name}")
    return tuple(found)


def _numbers(checkpoint: SparkCheckpoint, directory: str) -> list[str]:
    names = list_names(checkpoint.fs, f"{checkpoint.root}/{directory}") or []
    return sorted((name for name in names if _NUMBER.fullmatch(name)), key=int)


def _stores(checkpoint: SparkCheckpoint, directory: str) -> Iterator[tuple[str, set[str]]]:
    """Return a partition's directory with its names, and those of the stores of a join in it."""
    names = set(list_names(checkpoint.fs, f"{checkpoint.root}/{directory}") or ())
    yield directory, names
    for name in sorted(names):
        if "." not in name and not name.startswith("_"):
            deeper = list_names(checkpoint.fs, f"{checkpoint.root}/{directory}/{name}")
            yield f"{directory}/{name}", set(deeper or ())
