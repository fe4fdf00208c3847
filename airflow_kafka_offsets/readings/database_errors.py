"""Errors of databases: their text, and whether they may pass."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.model.text import shorten


def driver_error_text(error: DBAPIError) -> str:
    """Return the first line of the driver's own text."""
    return shorten(str(error.orig).partition("\n")[0], 300)


def is_temporary(error: DBAPIError) -> bool:
    """Whether an error may pass without a change, because the database is down or busy."""
    # Drivers raise an OperationalError also for a missing right, a wrong name or a wrong statement.
    of_sqlite = str(error.orig).startswith(("no such", "near", "ambiguous"))
    numbers = [each for each in getattr(error.orig, "args", ()) if isinstance(each, int)]
    of_mysql = {1044, 1045, 1049, 1054, 1142, 1143, 1146}.intersection(numbers[:1])
    return isinstance(error, OperationalError) and not (of_sqlite or of_mysql)
