"""
Archives of checkpoint moves: the files before each move, and how far the move has come.

Before the first change, a move copies every file that it will change to a directory below the checkpoint,
which Spark ignores::

    <checkpoint>/_kafka_offsets/0001-seek/
      <nonce>.claim        the claim of the move that begins, see checkpoint/apply_move.py
      manifest.json        the plan, and which files existed
      offsets/7            the copies
      before.csv           offsets of the groups that move along, as Kafka's CSV; after.csv likewise
      done                 written when the checkpoint and its groups are at their targets
      undone               written when the move is taken back; names the move that took it back

The manifest is written last: an archive with a manifest is complete. A directory without a manifest belongs
to a move that never began. A move with neither ``done`` nor ``undone`` is running, or was interrupted. No
other move begins until then, so only the newest move can be unfinished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from types import NoneType
from typing import Any, cast

from airflow_kafka_offsets.checkpoint.archived_move import (
    ARCHIVE_NAME,
    DIRECTORY,
    DONE,
    MANIFEST,
    UNDO,
    UNDONE,
    ArchivedMove,
)
from airflow_kafka_offsets.checkpoint.log import is_query_id
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointFormatError,
    OffsetsFormatError,
    StorageError,
)
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, MoveKind, read_sources, sources_json
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Offsets, Positions
from airflow_kafka_offsets.model.pipeline_plan import BEFORE_FILE, GROUPS_FILE, read_groups_file
from airflow_kafka_offsets.model.text import describe_type, size_error
from airflow_kafka_offsets.storage import decode

# Raised when an older version of this package would misread a manifest: each version refuses unknown numbers.
VERSION = 1

_MOVED = re.compile(r"(offsets|commits)/(0|[1-9][0-9]{0,18})")
"""The files that a move may write or remove: a restore touches no others."""
_OF_PLAN: Mapping[str, tuple[type, ...]] = {
    "query_id": (str,),
    "batch_id": (int,),
    "request": (str,),
    "carried": (bool,),
    "undoes": (str, NoneType),
    "copies": (bool,),
    "recovery": (bool, NoneType),
}
"""Fields of a plan that a manifest has unchanged, and their types; an early manifest has no ``recovery``."""


def file_digest(data: bytes | None) -> str | None:
    """Return a digest of a file's content; ``None`` if there is no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def write_archive(
    checkpoint: SparkCheckpoint,
    plan: CheckpointPlan,
    made_by: CommitMetadata,
    attachments: Mapping[str, str],
    nonce: str,
) -> None:
    """
    Copy the files that a move will overwrite; write the manifest last.

    :raises CheckpointError: before the first copy, if the manifest would be too large to be read.
    """
    planned, committed = plan.batches
    manifest = {
        "version": VERSION,
        "created": datetime.now(tz=timezone.utc).isoformat(timespec="seconds"),
        "kind": plan.kind,
        "location": plan.location,
        **{name: getattr(plan, name) for name in _OF_PLAN},
        "newest_planned": max(planned),
        "newest_committed": max(committed),
        "by": made_by.as_json(),
        "nonce": nonce,
        "logs": plan.log_ids.as_json(),
        **({"left": plan.left_logs.as_json()} if plan.left_logs else {}),
        "before": sources_json(plan.before),
        "after": sources_json(plan.after),
        "files": {
            step.path: {"before": file_digest(plan.file_contents[step.path]), "after": file_digest(step.data)}
            for step in plan.steps
        },
    }
    content = json.dumps(manifest, indent=2)
    if size_error(MANIFEST, content):
        raise CheckpointError(
            f"{plan.location}: the move changes {len(plan.steps):,} files, more than an archive can record; "
            "move to a batch halfway there first, or give the query a new checkpoint"
        )
    root = f"{DIRECTORY}/{plan.archive}"
    for path, data in plan.file_contents.items():
        if data is not None:
            checkpoint.write_file(f"{root}/{path}", data)
    for name, text in attachments.items():
        checkpoint.write_file(f"{root}/{name}", text.encode())
    # Last: an archive without a manifest changed nothing, so a process may die before this line.
    checkpoint.write_file(f"{root}/{MANIFEST}", content.encode())


def mark_done(checkpoint: SparkCheckpoint, name: str) -> None:
    """Mark a move as finished."""
    checkpoint.write_file(f"{DIRECTORY}/{name}/{DONE}", b"")


def mark_undone(checkpoint: SparkCheckpoint, name: str, made_by: str) -> None:
    """Mark a move as taken back."""
    checkpoint.write_file(f"{DIRECTORY}/{name}/{UNDONE}", f"{made_by}\n".encode())


def read_mark(checkpoint: SparkCheckpoint, name: str) -> str | None:
    """Return the mark of a move that is over, ``None`` for a move that is not."""
    for mark in (UNDONE, DONE):
        if checkpoint.read_file(f"{DIRECTORY}/{name}/{mark}") is not None:
            return mark
    return None


def read_copy(checkpoint: SparkCheckpoint, archive: ArchivedMove, path: str) -> bytes | None:
    """Return a file as it was before the move; a CheckpointError if its copy is missing or was changed."""
    before, _ = archive.files[path]
    if before is None:
        return None
    data = checkpoint.read_file(f"{DIRECTORY}/{archive.name}/{path}")
    if file_digest(data) != before:
        raise CheckpointError(
            f"{checkpoint.name(f'{DIRECTORY}/{archive.name}/{path}')}: is "
            f"{'gone' if data is None else 'changed'} since it was kept; give the offsets from a receipt or "
            "a CSV file instead"
        )
    return data


def read_attachment(checkpoint: SparkCheckpoint, archive: ArchivedMove, name: str) -> str | None:
    """Return the text of an attachment; ``None`` if the archive has no such file."""
    return checkpoint.read_text(f"{DIRECTORY}/{archive.name}/{name}")


def read_group_offsets(
    checkpoint: SparkCheckpoint, archive: ArchivedMove
) -> tuple[dict[str, Positions], dict[str, Offsets]]:
    """Return the positions of each group before a move, and its target offsets; empty without groups."""
    text = read_attachment(checkpoint, archive, GROUPS_FILE)
    if text is not None:
        return read_groups_file(text)
    if read_attachment(checkpoint, archive, BEFORE_FILE) is None:
        return {}, {}
    raise CheckpointError(
        f"{checkpoint.name(f'{DIRECTORY}/{archive.name}/{GROUPS_FILE}')}: is gone since it was kept, and "
        f"groups moved with the checkpoint ({BEFORE_FILE} has their offsets): put it back, or move the "
        "archive's directory away and give the offsets from a receipt or a CSV file"
    )


def read_archived_move(checkpoint: SparkCheckpoint, name: str) -> ArchivedMove | None:
    """Return an archive by its name, ``None`` if it has no manifest."""
    data = checkpoint.read_file(f"{DIRECTORY}/{name}/{MANIFEST}")
    if data is None:
        return None
    what = checkpoint.name(f"{DIRECTORY}/{name}/{MANIFEST}")
    done, undone = (checkpoint.read_file(f"{DIRECTORY}/{name}/{mark}") is not None for mark in (DONE, UNDONE))
    try:
        manifest = load_json(decode(data, what), what, describe=describe_type)
        archived = _archive(checkpoint.location, name, manifest, done=done, undone=undone)
    except (StorageError, OffsetsFormatError) as error:
        raise CheckpointFormatError(
            f"{what}: cannot be read ({str(error).removeprefix(f'{what}: ')}); expected a manifest of "
            f"version {VERSION} as this package writes it: move the archive's directory away, and give "
            "offsets from a receipt or a CSV file"
        ) from None
    return replace(archived, abandoned=_is_abandoned(checkpoint, archived))


def moves_of_batch(moves: Iterable[ArchivedMove], batch_id: int, data: bytes) -> list[ArchivedMove]:
    """
    Return the moves that have written other offsets into the file of a batch since Spark wrote it.

    :param moves: newest first; so is the result. It is empty if the moves were taken back.
    """
    content = written_by_spark = file_digest(data)
    found = []
    for move in moves:
        before, after = move.files.get(f"offsets/{batch_id}", (None, None))
        if before is not None and after == written_by_spark and move.batch_id == batch_id:
            found.append(move)
            written_by_spark = before
    return [] if written_by_spark == content else found


def _is_abandoned(checkpoint: SparkCheckpoint, archived: ArchivedMove) -> bool:
    if archived.is_over or not archived.is_failover:
        return False
    path = f"offsets/{archived.batch_id}"
    before, after = archived.files.get(path, (None, None))
    if before == after or file_digest(checkpoint.read_file(path)) != before:
        return False
    return archived.has_newer_batches(*checkpoint.listed())


def _archive(location: str, name: str, manifest: object, *, done: bool, undone: bool) -> ArchivedMove:
    """Read a manifest; an error names the field that is wrong, and never quotes its value."""
    field = partial(_field, manifest)
    if field("version", int) != VERSION:
        raise OffsetsFormatError(f"found version {describe_type(field('version', int))}")
    files: dict[str, tuple[str | None, str | None]] = {}
    for number, (path, digests) in enumerate(field("files", dict).items(), 1):
        # A restore writes and removes these paths: none may lead out of the checkpoint.
        if not _MOVED.fullmatch(path):
            raise OffsetsFormatError(f"entry {number} of files is not a batch in offsets or commits")
        files[path] = (_field(digests, "before", str, NoneType), _field(digests, "after", str, NoneType))
    of_plan = {name: field(name, *kinds) for name, kinds in _OF_PLAN.items()}
    query_id, undoes, created = of_plan["query_id"], of_plan["undoes"], field("created", str)
    # Both are shown to users, in commands too.
    if not is_query_id(query_id):
        raise OffsetsFormatError(f"found {describe_type(query_id)} as query_id")
    if undoes is not None and not ARCHIVE_NAME.fullmatch(undoes):
        raise OffsetsFormatError(f"found {describe_type(undoes)} as undoes")
    try:
        datetime.fromisoformat(created)
    except ValueError:
        raise OffsetsFormatError(f"found {describe_type(created)} as created") from None
    kind = name.partition("-")[2]
    removed = (path.partition("/") for path, (_, after) in files.items() if after is None)
    batches = sorted(int(number) for directory, _, number in removed if directory == "offsets")
    return ArchivedMove(
        **of_plan | {"recovery": bool(of_plan["recovery"])},
        kind="restore" if kind == UNDO else cast("MoveKind", kind),
        location=location,
        archive=name,
        discarded=tuple(batch for batch in batches if batch > of_plan["batch_id"]),
        created=created,
        newest_planned=field("newest_planned", int),
        newest_committed=field("newest_committed", int),
        nonce=field("nonce", str),
        made_by=CommitMetadata.from_json(field("by", dict)),
        before=read_sources(field("before", dict), "before", describe=describe_type),
        after=read_sources(field("after", dict), "after", describe=describe_type),
        files=files,
        log_ids=LogIds.parse(field("logs", dict, NoneType), describe=describe_type),
        left_logs=LogIds.parse(field("left", dict, NoneType), "left", describe=describe_type),
        done=done,
        undone=undone,
    )


def _field(among: object, key: str, *kinds: type) -> Any:
    found = among.get(key) if isinstance(among, dict) else among
    if type(found) not in kinds:
        raise OffsetsFormatError(f"found {describe_type(found)} as {key}")
    return found
