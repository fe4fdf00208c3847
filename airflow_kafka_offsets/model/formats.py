"""
The two forms in which Spark and Kafka write offsets, both read strictly.

* Spark's JSON, ``{"orders": {"0": 42}}``: topic -> partition (a string) -> offset. It is the form of
  XComs, asset events, receipts and Spark's ``startingOffsets`` alike.
* Kafka's CSV, as ``kafka-consumer-groups --export`` prints it and ``--from-file`` reads it: no header,
  ``topic,partition,offset`` for one group, ``group,topic,partition,offset`` for several.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.names import parse_stored_group
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    is_topic_name,
)
from airflow_kafka_offsets.model.text import MAX_VALUES, DescribeValue, shorten, size_error
from airflow_kafka_offsets.model.wording import dag_text, parameter_text

SPARK_FORM = '{"topic": {"0": 42}}'

# As many digits as a 32-bit number has; its size is checked after that.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
# As many digits as a 64-bit number has.
_OFFSET = re.compile(r"0|[1-9][0-9]{0,18}")
# Python refuses to read more than 4,300 digits, with an error of its own.
_MOST_DIGITS = 1_000
_CSV_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PYTHON = re.compile(r"\s*[\[({][\s\[({]*'")
"""The beginning of a dict, a list or a tuple that Python wrote, and not a JSON writer."""

_JSON_OBJECT = re.compile(r'\s*\{\s*["}]')
"""Where a line of CSV begins with a quoted name, its quotation mark is the first character."""


def parse_offsets(value: object, what: str = "offsets", *, describe: DescribeValue = shorten) -> Offsets:
    """
    Read offsets in Spark's form.

    :param value: a mapping, or its JSON text.
    :param what: what the value is, for the error text.
    :param describe: see :data:`~airflow_kafka_offsets.model.text.DescribeValue`.
    :raises OffsetsFormatError: if it is anything else than ``{topic: {partition: offset}}`` with at
        least one topic, whole numbers from 0 and no key twice. ``-1`` and ``-2`` (Spark's latest and
        earliest) are no offsets.
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
    """Read offsets in Spark's form where ``null`` stands for a partition without a commit."""
    given = value
    if isinstance(value, str):
        value = load_json(value, what, describe=describe)
    if not isinstance(value, Mapping) or not value:
        raise _malformed(what, describe(given))
    positions: Positions = {}
    for topic, partitions in value.items():
        if not isinstance(topic, str) or not is_topic_name(topic):
            raise _malformed(what, f"{_shown(topic, describe)} in place of a topic")
        if not isinstance(partitions, Mapping) or not partitions:
            raise _malformed(what, describe(given))
        for partition, offset in partitions.items():
            number = _partition(partition)
            if number is None or TopicPartition(topic, number) in positions:
                raise _malformed(
                    what, f"{_shown(partition, describe)} in place of a partition of topic {topic!r}"
                )
            tp = TopicPartition(topic, number)
            if offset is not None and (
                isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET
            ):
                raise _malformed(what, f"{describe(offset)} in place of the offset of {tp}")
            positions[tp] = offset
    return positions


def offsets_json(offsets: Mapping[TopicPartition, int | None]) -> dict[str, dict[str, int | None]]:
    """Return offsets in Spark's form: plain JSON, topics and partitions in order."""
    result: dict[str, dict[str, int | None]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def log_json(logs: Logs) -> dict[str, dict[str, dict[str, int | None]]]:
    """Return ``log_start`` and ``log_end``, each in Spark's form."""
    return {
        "log_start": offsets_json({tp: log.start for tp, log in logs.items()}),
        "log_end": offsets_json({tp: log.end for tp, log in logs.items()}),
    }


def offsets_text(offsets: Mapping[TopicPartition, int | None]) -> str:
    """Return offsets in Spark's form as compact JSON text, as Spark writes them into a checkpoint."""
    return json.dumps(offsets_json(offsets), separators=(",", ":"))


def parse_csv(text: str, group_id: str | None = None) -> dict[str, Offsets]:
    """
    Read Kafka's CSV into the offsets of each group.

    As in Kafka's tool the form is taken from the first line: three columns need a ``group_id``, which
    the offsets are then for; with four columns and a ``group_id`` only that group's lines are kept.

    :raises OffsetsFormatError: naming the line and what was expected.
    """
    if _JSON_OBJECT.match(text):
        raise OffsetsFormatError(
            "the file begins as JSON; expected lines of topic,partition,offset. A receipt's before is put "
            f"back by {dag_text('RestoreOffsetsOperator(receipt=...) or ')}'group restore --receipt', and "
            f"its after is given as {parameter_text('to_offset')}"
        )
    rows = _csv_rows(text)
    first = next(rows, None)
    if first is None:
        raise OffsetsFormatError("the file has no lines; expected topic,partition,offset on each line")
    columns = len(first[1])
    if columns not in (3, 4):
        raise _malformed_line(first[0], f"{columns} columns")
    if columns == 3 and group_id is None:
        raise OffsetsFormatError(
            "the file has lines of topic,partition,offset and no group was named: name one group, or give "
            "lines of group,topic,partition,offset"
        )
    groups: dict[str, Offsets] = {}
    for number, row in itertools.chain([first], rows):
        tp, offset = _csv_offset(number, row, columns)
        group = parse_stored_group(row[0], f"line {number}, group") if columns == 4 else str(group_id)
        offsets = groups.setdefault(group, {})
        if tp in offsets:
            raise OffsetsFormatError(
                f"line {number}: {tp} of group {shorten(repr(group))} occurs twice; keep one of the lines"
            )
        offsets[tp] = offset
    return groups if group_id is None else {group_id: group_offsets(groups, group_id)}


def group_offsets(groups: Mapping[str, Offsets], group_id: str) -> Offsets:
    """Return a group's offsets of those that :func:`parse_csv` has read; an error if it has none."""
    if group_id not in groups:
        raise OffsetsFormatError(
            f"the file has no line for group {shorten(repr(group_id))}; it has lines for "
            f"{shorten(', '.join(map(repr, sorted(groups)[:10])))}"
        )
    return groups[group_id]


def _csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    if refusal := size_error("the file", text, "\n,", 3 * MAX_VALUES):
        raise OffsetsFormatError(refusal)
    lines = (line[0] for line in _CSV_LINE.finditer(text))
    try:
        yield from ((number, row) for number, row in enumerate(csv.reader(lines), 1) if row)
    except csv.Error as error:  # a field of more than 128 KiB, a lone carriage return
        raise OffsetsFormatError(
            f"the file is no CSV ({error}); expected lines of topic,partition,offset"
        ) from None


def _csv_offset(number: int, row: list[str], columns: int) -> tuple[TopicPartition, int]:
    if len(row) != columns:
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


def format_csv(groups: Mapping[str, Mapping[TopicPartition, int | None]]) -> str:
    """
    Write Kafka's CSV: three columns for one group, four for several, as ``--export`` does.

    A partition without an offset is left out.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in groups.items():
        for row in ((*tp, offset) for tp, offset in sorted(offsets.items()) if offset is not None):
            writer.writerow(row if len(groups) == 1 else (group, *row))
    return out.getvalue()


def load_json(text: str, what: str, expected: str = SPARK_FORM, *, describe: DescribeValue = shorten) -> Any:
    """
    Read JSON text in which no key may occur twice.

    :param what: what the text is, for the error text.
    :param expected: what it should hold, likewise.
    :raises OffsetsFormatError: if it is no JSON, holds a key twice, or is too large; see
        :func:`~airflow_kafka_offsets.model.text.size_error`.
    """
    if refusal := size_error(what, text):
        raise OffsetsFormatError(refusal)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=_number)
    except _TwiceError as error:
        key, number = error.args
        named = shorten(repr(key)) if describe is shorten else f"number {number} of an object"
        raise OffsetsFormatError(f"{what}: key {named} occurs twice in {describe(text)}; keep one") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise OffsetsFormatError(
            f"{what}: {describe(text)} is not JSON ({reason}); expected {expected}{repr_hint(text)}"
        ) from None


class _TwiceError(Exception):
    """A key and its number: it occurs a second time in an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for number, (key, value) in enumerate(pairs, 1):
        if key in result:
            raise _TwiceError(key, number)
        result[key] = value
    return result


def _number(digits: str) -> int:
    # Python reads thousands of digits slowly, or not at all.
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def repr_hint(value: object) -> str:
    """Return a remedy for a text that is a dict or a list as Python spells it, else nothing."""
    if not isinstance(value, str) or not _PYTHON.match(value):
        return ""
    return dag_text(
        ". This is how Python spells a dict or a list: write JSON, in a template with the filter `| tojson`",
        "; JSON has double quotes",
    )


def _shown(key: object, describe: DescribeValue) -> str:
    return shorten(repr(key)) if describe is shorten and isinstance(key, str) else describe(key)


def _partition(value: object) -> int | None:
    """Return the number that a partition is named by, ``None`` if it is none."""
    if isinstance(value, str) and _PARTITION.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PARTITION:
        return value
    return None


def _malformed(what: str, found: str) -> OffsetsFormatError:
    return OffsetsFormatError(
        f"{what}: found {found}; expected Spark's form {SPARK_FORM}: topic, partition as a string, offset of "
        "the next record as a whole number from 0"
    )


def _malformed_line(number: int, found: str, columns: int | None = None) -> OffsetsFormatError:
    # What is in the line is not shown: it may be another file, and secret.
    form = {3: "topic,partition,offset", 4: "group,topic,partition,offset"}.get(columns or 0)
    return OffsetsFormatError(
        f"line {number}: found {found}; expected "
        f"{form or 'topic,partition,offset or group,topic,partition,offset'} without a header"
    )
