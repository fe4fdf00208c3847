"""
Parses and edits the files of a checkpoint's ``offsets`` and ``commits`` directories.

Functions take text and return values; none opens a file. The formats are those of Spark 3.5 to 4.3
(``OffsetSeqLog`` and ``CommitLog`` in Spark's source)::

    offsets/N, v1                           offsets/N, v2 (Spark 4.2)
      v1                                      v2
      {"batchTimestampMs":...} or empty       {"batchTimestampMs":...}
      {"orders":{"0":42}}   source 0          rate:17                      lines in any order,
      -                     source 1: none    orders:{"orders":{"0":42}}   name or index, one colon

Any other content is refused with the name of the file, never guessed: a position read wrongly from an
incomplete file would be committed as if Spark had written it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.errors import CheckpointFormatError, OffsetsFormatError
from airflow_kafka_offsets.model.formats import load_json, offsets_text, parse_offsets
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.text import describe_type, is_int, size_error

NO_OFFSET = "-"
"""Spark's value for a source without an offset yet (``OffsetSeqLog.SERIALIZED_VOID_OFFSET``)."""

# Nine digits: Spark reads an Int.
_VERSION_LINE = re.compile(r"v([1-9][0-9]{0,8})")
# Quote only text that looks like a version: the file may be another one, with secrets in it.
_LIKE_A_VERSION = re.compile(r"[vV]?[0-9]{1,9}")
_SOURCE_KEY = re.compile(r"[A-Za-z0-9_]{1,1000}")
"""An index, or a name that Spark 4.2 accepts in ``readStream.name(...)``; Spark limits no length."""
_QUERY_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""Spark's query ids are UUIDs."""
_DIGITS = re.compile(r"[0-9]+")
_LAST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999."""
_CUT_OFF, _EDITED = "the file is cut off", "the file is cut off or was edited"
MAY_BE_NEWER = "a newer version of this package may support it"


@dataclass(frozen=True)
class OffsetLogEntry:
    """
    One file of ``offsets/``.

    :param version: 1 or 2.
    :param metadata: the second line; empty in continuous mode.
    :param sources: index in the query's plan, or name -> the offset as the source wrote it, ``None`` if it
        had none yet; in the order of the lines.
    :param kafka_offsets: the offsets of each Kafka source, by index or name.
    :param text: the whole file.
    """

    version: int
    metadata: Mapping[str, Any]
    sources: Mapping[str, str | None]
    kafka_offsets: dict[str, Offsets]
    text: str = field(repr=False)

    @property
    def batch_timestamp_ms(self) -> int | None:
        """When Spark planned the batch, in ms since 1970; ``None`` in continuous mode."""
        timestamp = self.metadata.get("batchTimestampMs")
        return timestamp if is_int(timestamp, most=_LAST_MILLISECOND) else None

    def with_offsets(self, offsets: Mapping[str, Offsets]) -> str:
        """Return the file's text with all offsets of some Kafka sources replaced; the rest is unchanged."""
        lines = self.text.split("\n")
        there = self.kafka_offsets
        for number, source in enumerate(self.sources, 2):
            if source in there and offsets.get(source, there[source]) != there[source]:
                lines[number] = ("" if self.version == 1 else f"{source}:") + offsets_text(offsets[source])
        return "\n".join(lines)


def is_query_id(text: str) -> bool:
    """Whether a text has the form of a query id; query ids are shown and written into commit metadata."""
    return _QUERY_ID.fullmatch(text) is not None


def parse_query_id(text: str, name: str) -> str:
    """Read the ``metadata`` file, ``{"id": "<uuid>"}``; anything else is a CheckpointFormatError."""
    value = json_object(text, name, 'a query\'s {"id": "<uuid>"}')
    query_id = value.get("id")
    if not isinstance(query_id, str) or not is_query_id(query_id):
        expected = 'a query\'s {"id": "<uuid>"} as Spark writes it'
        raise format_error(name, f"{describe_type(query_id)} as id", expected)
    return query_id


def parse_offset_log(text: str, name: str) -> OffsetLogEntry:
    """Read one file of ``offsets/``; a CheckpointFormatError if it is incomplete, unknown or too large."""
    if refusal := size_error(name, text, "\n,{["):
        raise CheckpointFormatError(refusal)
    lines = text.split("\n")
    version = _version(lines[0], name, newest=2)
    if len(lines) < 2:
        expected = "a line of metadata and one for each source"
        raise format_error(name, "only the version line", expected, _CUT_OFF)
    metadata = json_object(lines[1], f"{name}, line 2", "the batch's metadata") if lines[1] else {}
    # Spark ends the file without a line feed. An editor may add one; Spark reads such a file too.
    source_lines = lines[2:-1] if lines[-1] == "" else lines[2:]
    if not source_lines:
        expected = "one for each source, after the metadata"
        raise format_error(name, "no line of a source", expected, _CUT_OFF)
    sources: dict[str, str | None] = {}
    known: dict[str, Offsets] = {}
    for index, line in enumerate(source_lines):
        where = f"{name}, line {index + 3}"
        source, offset = (str(index), line) if version == 1 else _split_named(line, where)
        if source in sources:
            raise format_error(where, f"source {source!r} for the second time", "each source once")
        if not offset:
            raise format_error(where, "nothing", f"an offset as JSON, or {NO_OFFSET!r}", _CUT_OFF)
        sources[source] = None if offset == NO_OFFSET else offset
        if offset != NO_OFFSET and (offsets := kafka_offsets(offset, where)) is not None:
            known[source] = offsets
    return OffsetLogEntry(version, metadata, sources, known, text)


def check_commit_log(text: str, name: str) -> None:
    """
    Check one file of ``commits/``: a known version, and JSON. Its other content is ignored.

    Version 2 has the ids of the state's files, version 3 also the names of the query's sinks (Spark 4.2).

    :raises CheckpointFormatError: if it is of another version, or cut off.
    """
    if not text.strip("\0"):
        raise CheckpointFormatError(
            f"{name}: the file is empty; expected the commit of a batch. The machine or its storage has "
            "failed while Spark wrote it, and Spark does not start from it: remove the file together with "
            f".{name.rpartition('/')[2]}.crc beside it, if that exists, and Spark runs the batch again with "
            "the same records"
        )
    version_line, separator, metadata = text.partition("\n")
    _version(version_line, name, newest=3)
    if not separator:
        raise format_error(name, "only the version line", "the commit's metadata after it", _CUT_OFF)
    json_object(metadata, f"{name}, line 2", "the commit's metadata")


def kafka_offsets(text: str, name: str = "offset") -> Offsets | None:
    """
    Return the offsets of a Kafka source, or ``None`` if the text belongs to another kind of source.

    Of the known sources only Kafka writes ``{"topic": {"<digits>": <number>}}``: rate, socket and memory
    sources write a number, file sources ``{"logOffset": 0}``, Delta a flat object. Azure Event Hubs writes
    Kafka's form too, so the form proves nothing about the broker: compare topics and offsets with the broker
    before a commit. ``{}`` (no topic matches the pattern yet) counts as another source's text.

    :param name: the file and line, for the error text.
    :raises CheckpointFormatError: if the text is not JSON (Spark requires JSON of every source, so the line
        is cut off), or has Kafka's form with an invalid offset, such as a negative number.
    """
    try:
        value = load_json(text, name, describe=describe_type)
        return parse_offsets(value, name, describe=describe_type) if _has_kafka_shape(value) else None
    except OffsetsFormatError as error:
        raise CheckpointFormatError(f"{error}; {_EDITED}") from None


def _has_kafka_shape(value: object) -> bool:
    # One partition with a number shows Kafka's form, as no other source does: the rest must be valid.
    if not isinstance(value, dict) or not all(isinstance(inner, dict) for inner in value.values()):
        return False
    return any(
        _DIGITS.fullmatch(partition) and (offset is None or isinstance(offset, (int, float)))
        for inner in value.values()
        for partition, offset in inner.items()
    )


def _version(line: str, name: str, newest: int) -> int:
    found = _VERSION_LINE.fullmatch(line)
    if found is None:
        shown = repr(line) if _LIKE_A_VERSION.fullmatch(line) else describe_type(line)
        raise CheckpointFormatError(
            f"{name}: the first line is {shown}; expected the version, v1 to v{newest}, as Spark writes it"
        )
    version = int(found[1])
    if version > newest:
        expected = f"v1 to v{newest}, as Spark 3.5 to 4.3 write them"
        raise format_error(name, f"version v{version}", expected, MAY_BE_NEWER)
    return version


def _split_named(line: str, where: str) -> tuple[str, str]:
    # Spark splits at the first colon; later colons belong to the JSON.
    source, separator, offset = line.partition(":")
    if not separator or not _SOURCE_KEY.fullmatch(source):
        raise format_error(where, describe_type(line), "a source's name or index, a colon and its offset")
    return source, offset


def json_object(text: str, where: str, expected: str) -> dict[str, Any]:
    """Read a JSON object; a CheckpointFormatError, which names what was expected, for any other text."""
    if refusal := size_error(where, text):
        raise CheckpointFormatError(refusal)
    # Spark's JSON may contain a key twice, which load_json refuses.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not isinstance(value, dict):
        raise format_error(where, describe_type(value), f"{expected} as a JSON object", _EDITED)
    return value


def format_error(where: str, found: str, expected: str, reason: str = "") -> CheckpointFormatError:
    """Return the error for a file that is not as its writer writes it."""
    text = f"{where}: found {found}; expected {expected}"
    return CheckpointFormatError(f"{text}: {reason}" if reason else text)
