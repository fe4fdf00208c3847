"""
Parses the files in which Delta Lake, Iceberg and Hudi record the batches of streaming queries.

Functions take bytes and return a batch id; none opens a file::

    Delta Lake  _delta_log/<version>.json            {"txn": {"appId": "<query id>", "version": <batch id>}}
    Iceberg     metadata/<number>...metadata.json    spark.sql.streaming.queryId and .epochId in the
                                                     summaries of the snapshots
    Hudi        .hoodie/<instant>.commit, since 1.0  _hudi_streaming_sink_checkpoint: {"<writer>": "<batch
                .hoodie/timeline/<instants>.commit   id>"} in the metadata: JSON, since 1.0 Avro

Any other content is refused with the name of the file, never guessed: if a recorded id were taken for a free
one, the sink would skip that batch's records.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, NamedTuple

from airflow_kafka_offsets.checkpoint.log import MAY_BE_NEWER, format_error, json_object
from airflow_kafka_offsets.errors import CheckpointFormatError
from airflow_kafka_offsets.model.text import MAX_SIZE, describe_type, is_int, size_error, too_large_error
from airflow_kafka_offsets.storage import decode

_CATALOG_FEATURES = ("catalogManaged", "catalogOwned", "coordinatedCommits")
"""An action of Delta: a catalog keeps the newest commits."""
_QUERY, _EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_HUDI_KEY = "_hudi_streaming_sink_checkpoint"
_AVRO_KEY = bytes([2 * len(_HUDI_KEY)]) + _HUDI_KEY.encode()
"""The key as Avro writes it: length, then text."""
_AVRO_SCHEMA = re.compile(rb'"name":"Hoodie(Replace)?CommitMetadata"')
# Since Hudi 1.0 the layout is 2, with the timeline in a separate directory.
_LAYOUT = re.compile(r"^hoodie\.timeline\.layout\.version=([0-9]{1,9})\s*$", re.MULTILINE)
# Any 18 digits fit a Long, so the number needs no further check.
_BATCH_ID = re.compile(r"[0-9]{1,18}")
# Bytes of Avro's sync marker, which ends the header and each block.
_SYNC = 16


def delta_batch(data: bytes, name: str, query_id: str) -> int | None:
    """
    Return the batch of a query that a commit of a Delta table records, ``None`` if it records none.

    :raises CheckpointFormatError: if it is not a commit, or a catalog may keep the table's newest commits.
    """
    text = decode(data, name)
    if refusal := size_error(name, text, "\n"):
        raise CheckpointFormatError(refusal)
    batch_id = None
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        where = f"{name}, line {number}"
        action = json_object(line, where, "an action of a Delta table")
        features = _part(action, "protocol", where).get("writerFeatures")
        if isinstance(features, list) and any(str(each).startswith(_CATALOG_FEATURES) for each in features):
            raise CheckpointFormatError(
                f"{where}: a catalog keeps the table's newest commits; expected all of them in _delta_log"
            )
        transaction = _part(action, "txn", where)
        if transaction.get("appId") == query_id:
            batch_id = _number(transaction.get("version"), f"{where}, txn, version")
    return batch_id


class IcebergTable(NamedTuple):
    """The content of an Iceberg table's metadata file."""

    batch_id: int | None
    """The newest batch of the query in the table, if any."""
    earlier: frozenset[str]
    """Names of the earlier metadata files, as far as the file lists them."""


def iceberg_table(data: bytes, name: str, query_id: str) -> IcebergTable:
    """
    Read a file of an Iceberg table's metadata.

    Like Iceberg, follow the parents from the current snapshot to find the newest batch. A newer batch of the
    query in any other snapshot counts too.

    :raises CheckpointFormatError: if the file is not a table's metadata, or a parent snapshot has expired
        before a batch of the query was found.
    """
    metadata = json_object(decode(_unpacked(data, name), name), name, "an Iceberg table's metadata")
    version = metadata.get("format-version")
    # These versions keep snapshots, parents and summaries in the same place.
    if isinstance(version, bool) or version not in (1, 2, 3):
        raise format_error(name, f"{describe_type(version)} as format-version", "1, 2 or 3", MAY_BE_NEWER)
    earlier = frozenset(
        str(entry.get("metadata-file")).rpartition("/")[2]
        for entry in _objects(metadata, "metadata-log", name)
    )
    snapshots = dict(
        _snapshot(value, f"{name}, snapshot number {number}", query_id)
        for number, value in enumerate(_objects(metadata, "snapshots", name), 1)
    )
    current = metadata.get("current-snapshot-id")
    current = None if current == -1 else _number(current, f"{name}, current-snapshot-id", optional=True)
    while current is not None:
        if current not in snapshots:
            raise CheckpointFormatError(
                f"{name}: a snapshot that may belong to the query has expired; expected a snapshot of the "
                "query"
            )
        parent, batch_id = snapshots.pop(current)
        if batch_id is not None:
            others = [other for _, other in snapshots.values() if other is not None]
            return IcebergTable(max([batch_id, *others]), earlier)
        current = parent
    return IcebergTable(None, earlier)


def hudi_layout(data: bytes, name: str) -> int:
    """Return the layout of a Hudi table's timeline from its ``hoodie.properties``: 1 or 2 (since 1.0)."""
    found = _LAYOUT.search(decode(data, name))
    if found is None or int(found[1]) not in (1, 2):
        layout = f"{int(found[1]) if found else 'nothing'} as hoodie.timeline.layout.version"
        raise format_error(name, layout, "1 or 2", MAY_BE_NEWER)
    return int(found[1])


def hudi_batch(data: bytes, name: str) -> int | None:
    """
    Return the newest batch of any query that a commit of a Hudi table records, ``None`` if it records none.

    Hudi does not record query ids, only a writer's name that the job may choose.
    """
    if data.startswith(b"Obj\x01"):
        recorded = _value_in_avro(data, name)
    else:
        metadata = json_object(decode(data, name), name, "a Hudi commit's metadata")
        recorded = _part(metadata, "extraMetadata", name).get(_HUDI_KEY)
    if recorded is None:
        return None
    where = f"{name}, {_HUDI_KEY}"
    if not isinstance(recorded, str):
        raise format_error(where, describe_type(recorded), "a text")
    return max(
        (_written(text, where) for text in json_object(recorded, where, "writers").values()), default=None
    )


def _value_in_avro(data: bytes, name: str) -> str | None:
    """Return the value of the key from Avro: texts are unchanged there, unless the file is compressed."""
    reader = _Avro(data, len(b"Obj\x01"), name)
    header: dict[str, bytes] = {}
    while count := reader.number():
        if count < 0:  # a negative count is followed by the block's size
            reader.number()
        for _ in range(min(abs(count), len(data))):
            key = decode(reader.text(), name)
            header[key] = reader.text()
    if header.get("avro.codec", b"null") != b"null":
        raise format_error(name, "compressed Avro", "it as Hudi writes it")
    if not _AVRO_SCHEMA.search(header.get("avro.schema", b"")):
        raise format_error(name, "Avro of another schema", "a Hudi commit's metadata")
    start, sync = reader.position + _SYNC, data[reader.position : reader.position + _SYNC]
    if len(sync) < _SYNC or data[-_SYNC:] != sync or len(data) < start + _SYNC:
        raise format_error(name, "Avro that is cut off", "a Hudi commit's metadata")
    found = data.count(_HUDI_KEY.encode(), start)
    if found == 0:
        return None
    at = data.find(_AVRO_KEY, start)
    if found > 1 or at < 0:
        raise format_error(name, f"{_HUDI_KEY} {found} times", "one key of that name")
    return decode(_Avro(data, at + len(_AVRO_KEY), name).text(), name)


class _Avro:
    def __init__(self, data: bytes, position: int, name: str) -> None:
        self.data, self.position, self.name = data, position, name

    def number(self) -> int:
        """Read a number in zigzag form: seven bits in each byte, lowest first; the lowest bit is the sign."""
        value = 0
        # Ten bytes contain 64 bits: a longer number is damaged.
        for shift in range(0, 70, 7):
            (byte,) = self._bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise self._cut_off()

    def text(self) -> bytes:
        return self._bytes(self.number())

    def _bytes(self, size: int) -> bytes:
        part = self.data[self.position : self.position + max(size, 0)]
        if len(part) != size:
            raise self._cut_off()
        self.position += size
        return part

    def _cut_off(self) -> CheckpointFormatError:
        return format_error(self.name, "Avro that is cut off or damaged", "a whole file")


def _snapshot(value: dict[str, Any], where: str, query_id: str) -> tuple[int, tuple[int | None, int | None]]:
    """Return the id of a snapshot, and its parent and the query's batch in it, if any."""
    number = _number(value.get("snapshot-id"), f"{where}, snapshot-id")
    parent = _number(value.get("parent-snapshot-id"), f"{where}, parent-snapshot-id", optional=True)
    summary = _part(value, "summary", where)
    batch_id = (
        _written(summary.get(_EPOCH), f"{where}, {_EPOCH}") if summary.get(_QUERY) == query_id else None
    )
    return number, (parent, batch_id)


def _part(value: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return a nested object, an empty one if the key is missing."""
    part = value.get(key)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise format_error(where, f"{describe_type(part)} as {key}", "an object")
    return part


def _objects(value: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """Return a nested list of objects, an empty one if the key is missing."""
    listed = value.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise format_error(where, f"{describe_type(listed)} as {key}", "a list of objects")
    return listed


def _number(value: Any, where: str, *, optional: bool = False) -> Any:
    if value is None and optional:
        return None
    # Delta's and Iceberg's numbers are Java Longs, the default of is_int.
    if not is_int(value):
        raise format_error(where, describe_type(value), "a whole number from 0 on")
    return value


def _written(value: Any, where: str) -> int:
    if not isinstance(value, str) or not _BATCH_ID.fullmatch(value):
        raise format_error(where, describe_type(value), "a batch id in digits")
    return int(value)


def _unpacked(data: bytes, name: str) -> bytes:
    """Return the content of a file that may be compressed with gzip."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    gzip = zlib.decompressobj(wbits=31)
    try:
        content = gzip.decompress(data, MAX_SIZE + 1)
    except zlib.error:
        content = b""
    if len(content) > MAX_SIZE:
        raise CheckpointFormatError(too_large_error(name, len(content)))
    if not gzip.eof:
        raise format_error(name, "gzip that is cut off or damaged", "a whole file")
    return content
