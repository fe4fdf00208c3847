"""
Readers and writers of the two formats for offsets, Spark's JSON and Kafka's CSV.

* Spark's JSON, ``{"orders": {"0": 42}}``: topic -> partition (a string) -> offset. XComs, asset events,
  receipts and Spark's ``startingOffsets`` use it.
* Kafka's CSV, as ``kafka-consumer-groups --export`` prints it and ``--from-file`` reads it: no header,
  ``topic,partition,offset`` for one group, ``group,topic,partition,offset`` for several.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.names import parse_stored_group
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    by_topic,
    is_topic_name,
)
from airflow_kafka_offsets.model.text import MAX_VALUES, DescribeValue, is_int, quote, shorten, size_error
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

SPARK_FORM = '{"topic": {"0": 42}}'

# The digits of a 32-bit number; its value is checked afterwards.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
# The digits of a 64-bit number.
_OFFSET = re.compile(r"0|[1-9][0-9]{0,18}")
# Below Python's limit of 4,300 digits, which would raise a different error.
_MOST_DIGITS = 1_000
_CSV_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PYTHON = re.compile(r"\s*[\[({][\s\[({]*'")
"""The beginning of a dict, a list or a tuple in Python's syntax, which is not JSON."""

_JSON_OBJECT = re.compile(r'\s*\{\s*(?:"|\}\s*\Z)')
"""The beginning of a JSON object. A line of CSV with a quoted name begins with the quotation mark instead."""


def parse_offsets(value: object, what: str = "offsets", *, describe: DescribeValue = shorten) -> Offsets:
    """
    Read offsets in Spark's form, a mapping or its JSON text.

    :param describe: see :data:`~airflow_kafka_offsets.model.text.DescribeValue`.
    :raises OffsetsFormatError: if the value is not ``{topic: {partition: offset}}`` with at least one topic,
        whole numbers from 0 and unique keys. ``-1`` and ``-2`` (Spark's latest and earliest) are refused.
    """
    offsets: Offsets = {}
    for tp, offset in parse_positions(value, what, describe=describe).items():
        if offset is None:
            raise _malformed(what, f"no offset (null) for {tp}")
        offsets[tp] = offset
    return offsets


def parse_positions(
    value: object, what: str = "positions", *, describe: DescribeValue = shorten
) -> Positions:
    """Read offsets in Spark's form, with ``null`` for a partition without a commit."""
    given = value
    if isinstance(value, str):
        value = load_json(value, what, SPARK_FORM, describe=describe)
    if not isinstance(value, Mapping) or not value:
        raise _malformed(what, describe(given))
    positions: Positions = {}
    for topic, partitions in value.items():
        if not isinstance(topic, str) or not is_topic_name(topic):
            raise _malformed(what, f"{_shown(topic, describe)} instead of a topic")
        if not isinstance(partitions, Mapping) or not partitions:
            raise _malformed(what, describe(given))
        for partition, offset in partitions.items():
            number = _partition(partition)
            if number is None or TopicPartition(topic, number) in positions:
                raise _malformed(
                    what, f"{_shown(partition, describe)} instead of a partition of topic {topic!r}"
                )
            tp = TopicPartition(topic, number)
            if offset is not None and not is_int(offset):
                raise _malformed(what, f"{_shown(offset, describe)} instead of the offset of {tp}")
            positions[tp] = offset
    return positions


def offsets_json(offsets: Mapping[TopicPartition, int | None]) -> dict[str, dict[str, int | None]]:
    """Return offsets in Spark's form, as plain JSON with sorted topics and partitions."""
    return by_topic(offsets)


def log_json(logs: Logs) -> dict[str, dict[str, dict[str, int | None]]]:
    """Return ``log_start`` and ``log_end``, each in Spark's form."""
    return {
        "log_start": offsets_json({tp: log.start for tp, log in logs.items()}),
        "log_end": offsets_json({tp: log.end for tp, log in logs.items()}),
    }


def offsets_text(offsets: Mapping[TopicPartition, int | None]) -> str:
    """Return offsets in Spark's form as compact JSON text, as in a checkpoint."""
    return json.dumps(offsets_json(offsets), separators=(",", ":"))


def parse_csv(text: str) -> dict[str, Offsets]:
    """
    Read Kafka's CSV into the offsets of each group; lines of three columns are of the group ``""``.

    As in Kafka's tool, the first line decides the format; an OffsetsFormatError names the line and the
    format.
    """
    if _JSON_OBJECT.match(text):
        raise OffsetsFormatError(
            "the file begins as JSON; expected lines of topic,partition,offset. To restore a receipt's "
            f"before, use {dag_text('RestoreOffsetsOperator(receipt=...) or ')}'group restore --receipt'; to "
            f"reset to its after, give it as {parameter_text('to_offset')}"
        )
    groups: dict[str, Offsets] = {}
    columns = 0
    for number, row in _csv_rows(text):
        columns = columns or len(row)
        tp, offset = _csv_offset(number, row, columns)
        group = parse_stored_group(row[0], f"line {number}, group") if columns == 4 else ""
        offsets = groups.setdefault(group, {})
        if tp in offsets:
            of_group = group and f" of group {shorten(repr(group))}"
            raise OffsetsFormatError(f"line {number}: {tp}{of_group} occurs twice; keep one of the lines")
        offsets[tp] = offset
    if not groups:
        raise OffsetsFormatError("the file has no lines; expected topic,partition,offset on each line")
    return groups


def _csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    if refusal := size_error("the file", text, "\n,", 3 * MAX_VALUES):
        raise OffsetsFormatError(refusal)
    lines = (line[0] for line in _CSV_LINE.finditer(text))
    try:
        yield from ((number, row) for number, row in enumerate(csv.reader(lines), 1) if row)
    except csv.Error as error:  # a field of more than 128 KiB, a lone carriage return
        raise OffsetsFormatError(
            f"the file is not CSV ({error}); expected lines of topic,partition,offset"
        ) from None


def _csv_offset(number: int, row: list[str], columns: int) -> tuple[TopicPartition, int]:
    if len(row) != columns or columns not in (3, 4):
        raise _malformed_line(number, f"{len(row)} columns", columns)
    topic, text, offset = (cell.strip() for cell in row[-3:])
    partition = _partition(text)
    if not is_topic_name(topic):
        raise _malformed_line(number, f"no topic in column {columns - 2}", columns)
    if partition is None:
        raise _malformed_line(number, f"no partition in column {columns - 1}", columns)
    if not _OFFSET.fullmatch(offset) or int(offset) > MAX_OFFSET:
        raise _malformed_line(number, f"no offset in column {columns}", columns)
    return TopicPartition(topic, partition), int(offset)


@dataclass(frozen=True)
class OffsetsFile:
    """
    A file in Kafka's CSV.

    :param name: the file's URI; it is also written to the receipt.
    :param text: the file's content, after it was read.
    """

    name: str
    text: str = ""

    def group_offsets(self, group_id: str, groups: int) -> Offsets:
        """
        Return the file's offsets for a group; an OffsetsFormatError, which names the file, if it has none.

        :param groups: number of groups that are moved; lines of three columns are valid only for one group.
        """
        try:
            known = self._by_group
            if "" in known and groups > 1:
                raise OffsetsFormatError(
                    f"the file has lines of topic,partition,offset, and {groups} groups are moved: give "
                    "lines of group,topic,partition,offset"
                )
            if "" not in known and group_id not in known:
                raise OffsetsFormatError(
                    f"the file has no line for group {quote(group_id)}; it has lines for "
                    f"{shorten(', '.join(map(repr, sorted(known)[:10])))}"
                )
            return known[""] if "" in known else known[group_id]
        except OffsetsFormatError as error:
            raise OffsetsFormatError(f"{shorten(self.name)}: {error}") from None

    def offsets_by_group(self, group_ids: Sequence[str]) -> dict[str, Offsets]:
        """Return the file's offsets for several groups, see :meth:`group_offsets`."""
        return {group_id: self.group_offsets(group_id, len(group_ids)) for group_id in group_ids}

    @cached_property
    def _by_group(self) -> dict[str, Offsets]:
        # Parsed once, because the file may have many groups.
        return parse_csv(self.text)


def format_csv(groups: Mapping[str, Mapping[TopicPartition, int | None]]) -> str:
    """Return Kafka's CSV as ``--export`` does: one group in three columns; no line without an offset."""
    out = io.StringIO()
    # Before Python 3.13, csv quotes a carriage return only with all strings.
    special = any("\r" in group for group in groups)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if special else csv.QUOTE_MINIMAL
    writer = csv.writer(out, lineterminator="\n", quoting=quoting)
    for group, offsets in groups.items():
        for row in ((*tp, offset) for tp, offset in sorted(offsets.items()) if offset is not None):
            writer.writerow(row if len(groups) == 1 else (group, *row))
    return out.getvalue()


def load_json(text: str, what: str, expected: str = "JSON", *, describe: DescribeValue = shorten) -> Any:
    """Read JSON text; an OffsetsFormatError if it is not JSON, has a duplicate key, or is too large."""
    if refusal := size_error(what, text):
        raise OffsetsFormatError(refusal)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=_number)
    except _TwiceError as error:
        key = f"key {shorten(repr(error.args[0]))}" if describe is shorten else "a key"
        raise OffsetsFormatError(f"{what}: {key} occurs twice in {describe(text)}; keep one") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise OffsetsFormatError(
            f"{what}: {describe(text)} is not JSON ({reason}); expected {expected}{repr_hint(text)}"
        ) from None


def load_json_parameter(text: str, parameter: str, expected: str) -> Any:
    """Read the JSON text of a parameter like :func:`load_json`, but raise a UsageError that names it."""
    with as_usage_error(parameter):
        return load_json(text, parameter_text(parameter), expected)


@contextmanager
def as_usage_error(parameter: str | None = None) -> Iterator[None]:
    """Turn an OffsetsFormatError about a parameter, or about a file that it names, into a UsageError."""
    try:
        yield
    except OffsetsFormatError as error:
        raise UsageError(str(error), parameter=parameter) from None


class _TwiceError(Exception):
    """A duplicate key of an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _TwiceError(key)
        result[key] = value
    return result


def _number(digits: str) -> int:
    # Python parses thousands of digits slowly, or refuses them.
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def repr_hint(value: object) -> str:
    """Return a remedy for a dict or a list in Python's syntax; an empty string for any other value."""
    if not isinstance(value, str) or not _PYTHON.match(value):
        return ""
    return dag_text(
        ". This is Python's syntax for a dict or a list: write JSON, in a template with the filter `| "
        "tojson`",
        "; JSON has double quotes",
    )


def _shown(key: object, describe: DescribeValue) -> str:
    return shorten(repr(key)) if describe is shorten and isinstance(key, str) else describe(key)


def _partition(value: object) -> int | None:
    if isinstance(value, str) and _PARTITION.fullmatch(value):
        value = int(value)
    return value if is_int(value, most=MAX_PARTITION) else None


def _malformed(what: str, found: str) -> OffsetsFormatError:
    return OffsetsFormatError(
        f"{what}: found {found}; expected Spark's form {SPARK_FORM}: topic, partition as a string, offset of "
        "the next record as a whole number from 0"
    )


def _malformed_line(number: int, found: str, columns: int) -> OffsetsFormatError:
    # The content of the line is not shown: the file may be a wrong one, with secrets.
    forms = {3: "topic,partition,offset", 4: "group,topic,partition,offset"}
    form = forms.get(columns) or " or ".join(forms.values())
    return OffsetsFormatError(f"line {number}: found {found}; expected {form} without a header")
