"""The table that an audit reads, and the filter of its rows (the ``where`` parameter)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_kafka_offsets.model.formats import load_json_parameter
from airflow_kafka_offsets.model.parameters import is_blank
from airflow_kafka_offsets.model.text import quote
from airflow_kafka_offsets.model.wording import parameter_error, unexpected

_FORM = '{"column": value} or {"column": [values]}, such as {"batch": 7}'
_VALUES = (str, int, float, Decimal, date, datetime)


@dataclass(frozen=True)
class AuditedTable:
    """
    The table of an audit, and its columns for a record's topic, partition and offset.

    :param table: name of the table, or ``schema.table``.
    :param topic_column: ``None`` if the table has the records of one topic and no column for it.
    :param where: column -> value, or list of values, of the audited rows. These rows must be the output of
        the window only; rows outside the window then count as foreign.
    """

    table: str
    topic_column: str | None = "topic"
    partition_column: str = "partition"
    offset_column: str = "offset"
    where: Mapping[str, Any] = field(default_factory=dict)


def parse_where(value: object, parameter: str) -> dict[str, Any]:
    """
    Read a filter: for each column a value, or a list of accepted values.

    The filter contains no SQL: names are quoted and values are bound.

    :raises UsageError: if the filter or one of its values is empty, because a template that renders nothing
        would select no rows, or the wrong ones.
    """
    if isinstance(value, str):
        value = load_json_parameter(value, parameter, _FORM)
    if not isinstance(value, Mapping) or not value:
        raise unexpected(parameter, value, _FORM)
    for column, wanted in value.items():
        several = isinstance(wanted, list | tuple)
        values = list(wanted) if several else [wanted]
        if not isinstance(column, str) or not column.strip():
            raise parameter_error(
                parameter, f": found {quote(column)} as the name of a column; expected {_FORM}"
            )
        if not values or not all(isinstance(each, _VALUES) and not is_blank(each) for each in values):
            raise parameter_error(
                parameter,
                f": found {quote(wanted)} for column {quote(column)}; expected a text, a number, a date, or "
                "a list of these; not an empty value",
            )
    return dict(value)
