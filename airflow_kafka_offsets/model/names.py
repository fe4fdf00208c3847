"""Checks of consumer group names: the client and the broker must use the name unchanged."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.text import is_plain, quote, shorten
from airflow_kafka_offsets.model.wording import parameter_error, unexpected

MAX_GROUP_BYTES = 32_700
"""
Kafka's protocol writes the length of a text as a signed 16-bit integer. The description of a group that does
not exist has a text with the name and a few words.
"""

SPARK_CONF_KEY = "spark.kafkaOffsets.pipeline"
"""The Spark setting in which a job finds the names that its DAG has given to the pipeline."""

_EXPECTED = "the name of a consumer group"
_WHITESPACE = " \t\n\v\f\r"
"""Characters that the client removes at the beginning of a setting (C's ``isspace``)."""


def parse_group(name: object, parameter: str = "group_id") -> str:
    """
    Return the name if librdkafka sends it unchanged.

    librdkafka ends the process for a blank ``group.id``. It removes whitespace at the beginning, and
    everything after a NUL. For a name that is too long, it sends a request that no broker can read.
    Whitespace at the end is sent, but probably names the wrong group.

    :raises UsageError: if the value is not a name, or librdkafka would change it.
    """
    group = parse_existing_group(name, parameter)
    if not group.strip(_WHITESPACE):
        raise parameter_error(parameter, f" is blank ({quote(group)}); expected {_EXPECTED}")
    if group != group.strip(_WHITESPACE):
        raise parameter_error(
            parameter,
            f": found {quote(group)}; expected {_EXPECTED} without whitespace at its ends, because "
            "it would be another group: correct the name",
        )
    return group


def parse_stored_group(name: str, what: str) -> str:
    """Check a group's name from a file or a receipt like :func:`parse_existing_group`."""
    try:
        return parse_existing_group(name, what)
    except UsageError as error:
        raise OffsetsFormatError(str(error)) from None


def parse_existing_group(name: object, parameter: str = "group_id") -> str:
    """
    Return the name if a group of this name can be read or deleted. Other clients may have created groups
    with whitespace at the ends of their names.

    :raises UsageError: if no group can have the name.
    """
    if not isinstance(name, str):
        raise parameter_error(parameter, f": found {shorten(name)}; expected {_EXPECTED}")
    if not name:
        raise parameter_error(parameter, f" is empty; expected {_EXPECTED}")
    if not is_plain(name):
        raise parameter_error(
            parameter,
            f": found {quote(name)}, which the client would cut at a NUL or at a lone surrogate; "
            f"expected {_EXPECTED}",
        )
    if (size := len(name.encode())) > MAX_GROUP_BYTES:
        raise parameter_error(
            parameter,
            f": found a name of {size:,} bytes; expected {_EXPECTED} of at most {MAX_GROUP_BYTES:,}",
        )
    return name


def parse_existing_groups(names: Iterable[object]) -> list[str]:
    """Return sorted unique names, each checked by :func:`parse_existing_group`; a string is refused."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise unexpected("group_ids", names, "a list of groups")
    return sorted({parse_existing_group(name) for name in names})
