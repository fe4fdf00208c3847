"""
Names of checkpoint archives: ``0001-seek``, ``0002-restore``, numbered in the order of the moves.

A directory with neither a manifest nor a claim belongs to no move and is ignored, whatever its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from airflow_kafka_offsets.checkpoint.archived_move import (
    ARCHIVE_NAME,
    DIRECTORY,
    KINDS,
    MANIFEST,
    archive_number,
)
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError
from airflow_kafka_offsets.storage import may_list_late

CLAIM = ".claim"
"""Suffix of a claim's file name, see ``checkpoint/claim.py``."""


def archive_names(checkpoint: SparkCheckpoint, *, exact: bool = True) -> list[str]:
    """Return the names of a checkpoint's archives, oldest first; ``exact`` corrects a late listing."""
    names = set(filter(ARCHIVE_NAME.fullmatch, checkpoint.list_names(DIRECTORY)))
    if exact and may_list_late(checkpoint.fs):
        listed = set(map(archive_number, names))
        walks = [(_last_move(checkpoint, names) + 1, 1), *((number - 1, -1) for number in listed)]
        for first, step in walks:
            # Archives are missing because they are new, or because a user has deleted the old ones: those
            # beyond a number that does not exist are not looked up.
            for number in itertools.count(first, step):
                if number in listed or not (unlisted := _unlisted(checkpoint, number)):
                    break
                names |= unlisted
    return sorted(names, key=archive_number)


def _unlisted(checkpoint: SparkCheckpoint, number: int) -> set[str]:
    """Return the archives with a number that have a manifest, listed or not."""
    names = (f"{number:04d}-{kind}" for kind in KINDS if number > 0)
    return {name for name in names if checkpoint.read_file(f"{DIRECTORY}/{name}/{MANIFEST}") is not None}


def next_archive_name(checkpoint: SparkCheckpoint, kind: str) -> str:
    """
    Return the name of the next archive: its number follows all moves, including moves with a claim only.

    :raises CheckpointError: if there is no number left.
    """
    names = archive_names(checkpoint)
    taken, last = set(map(archive_number, names)), _last_move(checkpoint, names)
    number = next(number for number in itertools.count(last + 1) if number not in taken)
    if not ARCHIVE_NAME.fullmatch(name := f"{number:04d}-{kind}"):
        raise _no_number(checkpoint, max(names, key=archive_number))
    return name


def _last_move(checkpoint: SparkCheckpoint, names: Iterable[str]) -> int:
    """Return the number of the last directory with a manifest or a claim, 0 without any."""
    for name in sorted(names, key=archive_number, reverse=True):
        path = f"{DIRECTORY}/{name}"
        if checkpoint.read_file(f"{path}/{MANIFEST}") is not None or any(
            file.endswith(CLAIM) for file in checkpoint.list_names(path)
        ):
            return archive_number(name)
    return 0


def _no_number(checkpoint: SparkCheckpoint, name: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.name(DIRECTORY)}: found {name}, and archives are numbered from 0001 in the "
        "order of their moves: check the directory, and move it away if no move created it"
    )
