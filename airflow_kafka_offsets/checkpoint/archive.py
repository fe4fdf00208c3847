"""
Archives of a checkpoint's moves: what it held before, and how far each move has come.

Before the first change every file that will be touched is copied below the checkpoint, where Spark does not
look::

    <checkpoint>/_kafka_offsets/0001-seek/
      manifest.json        what was planned, and which files were there
      offsets/7            the copies
      before.csv           offsets of the groups that move along, in Kafka's form; likewise after.csv
      done                 once the checkpoint and its groups are where they were to go
      undone               names what took it back, once something did

The manifest is written last: an archive with one is whole. One without it belongs to a move that never began. A move
with neither ``done`` nor ``undone`` is under way, or has stopped half-way: nobody begins another one then, so only the
newest move can be unfinished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.checkpoint.storage import list_names, replace_file
from airflow_kafka_offsets.errors import CheckpointError, CheckpointFormatError, OffsetsFormatError
from airflow_kafka_offsets.model.metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.rewind import Rewind, read_sources, sources_json

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

DIRECTORY = "_kafka_offsets"
MANIFEST = "manifest.json"
DONE, UNDONE = "done", "undone"
VERSION = 1

_NAME = re.compile(r"([0-9]{4,9})-(seek|truncate|undo)")


@dataclass(frozen=True)
class Archive:
    """
    What one move of a checkpoint has kept.

    :param name: its directory's name, such as ``0001-seek``.
    :param created: when it was written, ISO 8601.
    :param query_id: the query's id.
    :param batch_id: the newest committed batch before the move.
    :param newest_planned: the newest batch in ``offsets/`` before the move.
    :param newest_committed: the newest batch in ``commits/`` before the move.
    :param by: who made the move: run and task, or the command line.
    :param request: identifies what was asked for.
    :param before: source -> offsets before the move.
    :param after: source -> offsets that were planned.
    :param files: path -> digests of what the file held before and was to hold after, ``None`` for no file.
    :param undoes: name of the archive that the move put back.
    :param copies: whether it put the files back, and not the offsets alone.
    :param done: the move was finished.
    :param undone: the move was taken back.
    """

    name: str
    created: str
    query_id: str
    batch_id: int
    newest_planned: int
    newest_committed: int
    by: CommitMetadata
    request: str
    before: Mapping[str, Offsets]
    after: Mapping[str, Offsets]
    files: Mapping[str, tuple[str | None, str | None]]
    undoes: str | None = None
    copies: bool = False
    done: bool = False
    undone: bool = False

    @property
    def over(self) -> bool:
        """Whether it was finished, or taken back."""
        return self.done or self.undone

    @property
    def number(self) -> int:
        """Which move of the checkpoint it is, from 1."""
        return int(self.name.partition("-")[0])

    def __str__(self) -> str:
        return f"{self.name} ({self.by}, {self.created})"


def digest(data: bytes | None) -> str | None:
    """Return what a file's content is recognized by; ``None`` for no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def next_name(checkpoint: SparkCheckpoint, kind: str) -> str:
    """Return the name of the next archive, also after one that was never finished."""
    numbers = [int(found[1]) for name in _directories(checkpoint) if (found := _NAME.fullmatch(name))]
    return f"{max(numbers, default=0) + 1:04d}-{kind}"


def write_archive(
    checkpoint: SparkCheckpoint,
    rewind: Rewind,
    *,
    newest_planned: int,
    newest_committed: int,
    by: CommitMetadata,
    attachments: Mapping[str, str],
) -> None:
    """Keep what a move will overwrite; the manifest comes last."""
    root = f"{checkpoint.root}/{DIRECTORY}/{rewind.archive}"
    for path, data in rewind.found.items():
        if data is not None:
            replace_file(checkpoint.fs, f"{root}/{path}", data)
    for name, text in attachments.items():
        replace_file(checkpoint.fs, f"{root}/{name}", text.encode())
    manifest = {
        "version": VERSION,
        "kind": rewind.kind,
        "created": datetime.now(tz=timezone.utc).isoformat(timespec="seconds"),
        "location": rewind.location,
        "query_id": rewind.query_id,
        "batch_id": rewind.batch_id,
        "newest_planned": newest_planned,
        "newest_committed": newest_committed,
        "by": by.as_json(),
        "request": rewind.request,
        "undoes": rewind.undoes,
        "copies": rewind.copies,
        "before": sources_json(rewind.before),
        "after": sources_json(rewind.after),
        "files": {
            step.path: {"before": digest(rewind.found[step.path]), "after": digest(step.data)}
            for step in rewind.steps
        },
    }
    replace_file(checkpoint.fs, f"{root}/{MANIFEST}", json.dumps(manifest, indent=2).encode())


def mark_done(checkpoint: SparkCheckpoint, name: str) -> None:
    """Note that a move was finished."""
    replace_file(checkpoint.fs, f"{checkpoint.root}/{DIRECTORY}/{name}/{DONE}", b"")


def mark_undone(checkpoint: SparkCheckpoint, name: str, by: str) -> None:
    """Note that a move was taken back."""
    replace_file(checkpoint.fs, f"{checkpoint.root}/{DIRECTORY}/{name}/{UNDONE}", f"{by}\n".encode())


def archive_names(checkpoint: SparkCheckpoint) -> list[str]:
    """Return the names of all archives, oldest first, also of those that are being written."""
    names = [name for name in _directories(checkpoint) if _NAME.fullmatch(name)]
    return sorted(names, key=lambda name: int(name.partition("-")[0]))


def newest_archive(checkpoint: SparkCheckpoint) -> Archive | None:
    """
    Return the archive of the newest move that has begun, ``None`` if the checkpoint was never moved.

    :raises CheckpointFormatError: if its manifest is not as it was written.
    """
    found = (_read(checkpoint, name) for name in reversed(archive_names(checkpoint)))
    return next((archive for archive in found if archive is not None), None)


def read_archives(checkpoint: SparkCheckpoint) -> list[Archive]:
    """
    Return the archives of a checkpoint, oldest first; those without a manifest are left out.

    :raises CheckpointFormatError: if a manifest is not as it was written.
    """
    found = [_read(checkpoint, name) for name in archive_names(checkpoint)]
    return [archive for archive in found if archive is not None]


def find_archive(checkpoint: SparkCheckpoint, name: str | None) -> Archive:
    """
    Return an archive by its name, or the newest move that was not taken back.

    :raises CheckpointError: if there is none; says which there are.
    """
    archives = read_archives(checkpoint)
    if name is None:
        open_ones = [archive for archive in archives if not archive.undone and "-undo" not in archive.name]
        if open_ones:
            return open_ones[-1]
    for archive in archives:
        if archive.name == name:
            return archive
    there = ", ".join(f"{a.name} ({'undone' if a.undone else a.created})" for a in archives) or "none"
    raise CheckpointError(
        f"{checkpoint.location}: found no {f'archive {name}' if name else 'move to take back'}; there are: {there}: name "
        "one of them, or give the offsets from a receipt or a CSV file"
    )


def archive_of_run(checkpoint: SparkCheckpoint, token: str) -> Archive | None:
    """Return the archive of the newest move of a task run that was not taken back, ``None`` if there is none."""
    mine = [archive for archive in read_archives(checkpoint) if archive.by.token == token] if token else []
    return next((archive for archive in reversed(mine) if not archive.undone), None)


def read_copy(checkpoint: SparkCheckpoint, archive: Archive, path: str) -> bytes | None:
    """
    Return what a file held before the move, ``None`` if it was not there.

    :raises CheckpointError: if the copy is gone or was changed.
    """
    before, _ = archive.files[path]
    if before is None:
        return None
    data = checkpoint.read_file(f"{DIRECTORY}/{archive.name}/{path}")
    if digest(data) != before:
        raise CheckpointError(
            f"{checkpoint.name(f'{DIRECTORY}/{archive.name}/{path}')}: is {'gone' if data is None else 'changed'} since it "
            "was kept; give the offsets from a receipt or a CSV file instead"
        )
    return data


def read_attachment(checkpoint: SparkCheckpoint, archive: Archive, name: str) -> str:
    """Return a text that was kept beside the copies, empty if there is none."""
    return (checkpoint.read_file(f"{DIRECTORY}/{archive.name}/{name}") or b"").decode()


def _directories(checkpoint: SparkCheckpoint) -> list[str]:
    return list_names(checkpoint.fs, f"{checkpoint.root}/{DIRECTORY}") or []


def _read(checkpoint: SparkCheckpoint, name: str) -> Archive | None:
    data = checkpoint.read_file(f"{DIRECTORY}/{name}/{MANIFEST}")
    if data is None:
        return None
    what = checkpoint.name(f"{DIRECTORY}/{name}/{MANIFEST}")
    try:
        value: dict[str, Any] = json.loads(data)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']!r}")
        return Archive(
            name=name,
            created=value["created"],
            query_id=value["query_id"],
            batch_id=int(value["batch_id"]),
            newest_planned=int(value["newest_planned"]),
            newest_committed=int(value["newest_committed"]),
            by=CommitMetadata.parse(json.dumps(value["by"])) or CommitMetadata(),
            request=value["request"],
            before=read_sources(value["before"], what),
            after=read_sources(value["after"], what),
            files={path: (change["before"], change["after"]) for path, change in value["files"].items()},
            undoes=value["undoes"],
            copies=value["copies"],
            done=checkpoint.read_file(f"{DIRECTORY}/{name}/{DONE}") is not None,
            undone=checkpoint.read_file(f"{DIRECTORY}/{name}/{UNDONE}") is not None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OffsetsFormatError) as error:
        raise CheckpointFormatError(
            f"{what}: cannot be read ({type(error).__name__}: {error}); expected a manifest of version {VERSION} as this "
            "package writes it: move its directory away, and give offsets from a receipt or a CSV file"
        ) from error
