"""Hints for a location without a checkpoint: its content, and which location was probably meant."""

from __future__ import annotations

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.model.text import join_first, shorten
from airflow_kafka_offsets.storage import list_names

PARTS = ("metadata", "offsets", "commits", "sources", "state")
"""Names in a checkpoint's directory; the first always exists."""

_OUTPUTS = {"_spark_metadata": "the output directory of a file sink", "_delta_log": "a Delta table"}
# Each try costs a request, on a storage that may be slow, only for a hint in an error text.
_DIRECTORIES_TRIED = 20


def describe_location(fs: AbstractFileSystem, root: str) -> str:
    """Describe a location that is not a checkpoint, such as ``a directory above checkpoints (orders)``."""
    try:
        return _describe(fs, root)
    except Exception:  # noqa: BLE001 - without permission to list there is no hint, and no other error
        return "no file metadata"


def _describe(fs: AbstractFileSystem, root: str) -> str:
    parent, _, name = root.rpartition("/")
    if name in PARTS and parent and fs.isfile(f"{parent}/metadata"):
        return f"the {name} of a checkpoint; give the directory above it"
    if fs.isfile(root):
        return "a file"
    names = sorted(name for name in list_names(fs, root) if name)
    if not names:
        return _describe_empty(fs, root, parent)
    for output, what in _OUTPUTS.items():
        if output in names:
            return f"{what} ({output} is there), not its checkpoint"
    if {"offsets", "commits"} & set(names):
        return (
            f"a directory with {join_first(names, show=shorten)} but without file metadata: the copy of a "
            "checkpoint is not complete"
        )
    checkpoints = _checkpoints(fs, root, names)
    if checkpoints:
        named = join_first(checkpoints, show=shorten)
        return f"a directory above checkpoints ({named}); give the checkpoint of one query"
    return f"a directory with {join_first(names, show=shorten)}"


def _describe_empty(fs: AbstractFileSystem, root: str, parent: str) -> str:
    what = "an empty directory" if fs.isdir(root) else "nothing"
    neighbours = sorted(name for name in list_names(fs, parent) if name) if parent else []
    checkpoints = _checkpoints(fs, parent, neighbours)
    if checkpoints:
        return f"{what}, but beside it checkpoints ({join_first(checkpoints, show=shorten)})"
    # A path without a scheme may belong to Spark's default file system, or to a Databricks volume.
    return f"{what} on this machine" if what == "nothing" and isinstance(fs, LocalFileSystem) else what


def _checkpoints(fs: AbstractFileSystem, root: str, names: list[str]) -> list[str]:
    candidates = [name for name in names if not name.startswith((".", "part-"))][:_DIRECTORIES_TRIED]
    return [name for name in candidates if fs.isfile(f"{root}/{name}/metadata")]
