"""Errors of databases: their text, and whether they may pass."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.model.text import shorten

_OF_MYSQL = frozenset({1044, 1045, 1049, 1054, 1142, 1143, 1146})
"""Error numbers that MySQL's drivers raise as OperationalError: no right, or a name that is not there."""

_OF_SQLITE = ("no such", "near", "ambiguous")
"""The beginnings of texts that SQLite's driver raises as OperationalError: a wrong name or statement."""


def driver_error_text(error: DBAPIError) -> str:
    """Return the first line of the driver's own text."""
    return shorten(str(error.orig).partition("\n")[0], 300)


def may_pass(error: DBAPIError) -> bool:
    """Whether an error may pass without a change, because the database is down or busy."""
    numbers = [each for each in getattr(error.orig, "args", ()) if isinstance(each, int)]
    named = str(error.orig).startswith(_OF_SQLITE) or _OF_MYSQL.intersection(numbers[:1])
    return isinstance(error, OperationalError) and not named
