"""Names of consumer groups that mean the same to the client, to the broker and to us."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.text import is_plain, shorten
from airflow_kafka_offsets.model.wording import parameter_error, unexpected

MAX_GROUP_BYTES = 32_767
"""Kafka's protocol writes a name's length as a signed 16-bit integer."""

SPARK_CONF_KEY = "spark.kafkaOffsets.pipeline"
"""Under which a Spark job finds the names that its DAG has given to the pipeline."""

_EXPECTED = "the name of a consumer group"
_WHITESPACE = " \t\n\v\f\r"
"""What the client cuts off at the beginning of a setting: C's ``isspace``."""


def parse_group(name: object, parameter: str = "group_id") -> str:
    """
    Return a group's name if the client passes it on as it is.

    librdkafka ends the process for a blank ``group.id``, cuts whitespace off at its beginning and everything
    from a NUL on, and sends a name that is too long as a request that no broker can read. Whitespace at the
    end arrives, but names another group than the one that was meant.

    :param parameter: what the name was given as, for the error text.
    :raises UsageError: if it is no name, or another one to the client.
    """
    group = parse_existing_group(name, parameter)
    if not group.strip(_WHITESPACE):
        raise parameter_error(parameter, f" is blank ({shorten(repr(group))}); expected {_EXPECTED}")
    if group != group.strip(_WHITESPACE):
        raise parameter_error(
            parameter,
            f": found {shorten(repr(group))}; expected {_EXPECTED} without whitespace around it, which the "
            "client cuts off, so that it would be another group: correct the name",
        )
    return group


def parse_stored_group(name: str, what: str) -> str:
    """Return a group's name that was read from a file or a receipt, as :func:`parse_group`."""
    try:
        return parse_group(name, what)
    except UsageError as error:
        raise OffsetsFormatError(str(error)) from None


def parse_existing_group(name: object, parameter: str = "group_id") -> str:
    """
    Return a group's name if it can be looked up or deleted: what other clients have created may have
    whitespace around.

    :param parameter: what the name was given as, for the error text.
    :raises UsageError: if it cannot.
    """
    if not isinstance(name, str):
        raise parameter_error(parameter, f": found {shorten(name)}; expected {_EXPECTED}")
    if not name:
        raise parameter_error(parameter, f" is empty; expected {_EXPECTED}")
    if not is_plain(name):
        raise parameter_error(
            parameter,
            f": found {shorten(repr(name))}, in which the client would stop at a NUL or at half of a "
            f"surrogate pair; expected {_EXPECTED}",
        )
    if (size := len(name.encode())) > MAX_GROUP_BYTES:
        raise parameter_error(
            parameter,
            f": found a name of {size:,} bytes; expected {_EXPECTED} of at most {MAX_GROUP_BYTES:,}",
        )
    return name


def parse_existing_groups(names: Iterable[object], parameter: str = "group_ids") -> list[str]:
    """
    Return the names of several groups in order, each once, see :func:`parse_existing_group`.

    :raises UsageError: also for one text, of which each letter would be a group.
    """
    if isinstance(names, str):
        raise unexpected(parameter, names, "a list of groups")
    return sorted({parse_existing_group(name) for name in names})
