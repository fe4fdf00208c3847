"""
The names of a checkpoint's archives: ``0001-seek``, ``0002-restore``, numbered in the order of their moves.

A directory belongs to a move if it has a manifest or a claim. Any other directory, whatever its number is,
decides nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast, get_args

from airflow_kafka_offsets.errors import CheckpointError
from airflow_kafka_offsets.model.checkpoint_plan import MoveKind
from airflow_kafka_offsets.storage import list_names, may_list_late

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

DIRECTORY = "_kafka_offsets"
MANIFEST = "manifest.json"
CLAIM = ".claim"
"""How the name of a claim's file ends, see ``checkpoint/claim.py``."""

_UNDO = "undo"
"""What a restore was called before 0.1.0: archives of that kind are still read."""
_KINDS = (*get_args(MoveKind), _UNDO)
# With a bound: names are read from the storage, and the next number is one higher.
ARCHIVE_NAME = re.compile(f"([0-9]{{4,9}})-({'|'.join(_KINDS)})")
_MOST_MISSING = 10_000
"""Numbers without an archive, below the last one, that are looked up one by one where listings are late."""


def archive_names(checkpoint: SparkCheckpoint, *, exact: bool = True) -> list[str]:
    """
    Return the names of the archives of a checkpoint, oldest first.

    :param exact: whether to correct a listing that may be late by reads of the newest manifests.
    """
    names = set(
        filter(ARCHIVE_NAME.fullmatch, list_names(checkpoint.fs, f"{checkpoint.root}/{DIRECTORY}") or [])
    )
    if exact and may_list_late(checkpoint.fs):
        listed, last = set(map(archive_number, names)), _last_move(checkpoint, names)
        if last - len(listed) > _MOST_MISSING:
            raise _no_number(checkpoint, max(names, key=archive_number))
        for number in itertools.count(1):
            unlisted = set() if number in listed else _unlisted(checkpoint, number)
            if not unlisted and number > last:
                break
            names |= unlisted
    return sorted(names, key=archive_number)


def _unlisted(checkpoint: SparkCheckpoint, number: int) -> set[str]:
    """Return the archives of a number that have a manifest, listed or not."""
    names = (f"{number:04d}-{kind}" for kind in _KINDS)
    return {name for name in names if checkpoint.read_file(f"{DIRECTORY}/{name}/{MANIFEST}") is not None}


def archive_number(name: str) -> int:
    """Return which move of the checkpoint an archive is of, by its name."""
    return int(name.partition("-")[0])


def move_kind(name: str) -> MoveKind:
    """Return the kind of the move that an archive is of, by its name."""
    kind = name.partition("-")[2]
    return "restore" if kind == _UNDO else cast("MoveKind", kind)


def next_archive_name(checkpoint: SparkCheckpoint, kind: str) -> str:
    """
    Return the name of the next archive: after those of all moves, also of one that only has a claim.

    A directory that no move has made keeps its number to itself, and decides nothing.

    :raises CheckpointError: if there is no number left.
    """
    names = archive_names(checkpoint)
    taken, last = set(map(archive_number, names)), _last_move(checkpoint, names)
    number = next(number for number in itertools.count(last + 1) if number not in taken)
    if not ARCHIVE_NAME.fullmatch(name := f"{number:04d}-{kind}"):
        raise _no_number(checkpoint, max(names, key=archive_number))
    return name


def _last_move(checkpoint: SparkCheckpoint, names: Iterable[str]) -> int:
    """Return the number of the last directory with a manifest or a claim, 0 if there is none."""
    return next(
        (
            archive_number(name)
            for name in sorted(names, key=archive_number, reverse=True)
            if _is_of_move(checkpoint, name)
        ),
        0,
    )


def _is_of_move(checkpoint: SparkCheckpoint, name: str) -> bool:
    path = f"{DIRECTORY}/{name}"
    return checkpoint.read_file(f"{path}/{MANIFEST}") is not None or any(
        file.endswith(CLAIM) for file in list_names(checkpoint.fs, f"{checkpoint.root}/{path}") or []
    )


def _no_number(checkpoint: SparkCheckpoint, name: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.name(DIRECTORY)}: found {name}, and archives are numbered from 0001 in the "
        "order of their moves: look into it, and if no move has made it, move that directory away"
    )
