"""Opens databases through Airflow connections, and reads the offsets that a job saves in a database."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_kafka_offsets.errors import NoCommitError, SetupError, StorageUnavailableError, UsageError
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.wording import parameter_text

if TYPE_CHECKING:
    from sqlalchemy import Engine


def stored_offsets(
    conn_id: str, pipeline: str, table: str = "kafka_offsets"
) -> tuple[Offsets, datetime | None]:
    """
    Return the offsets in a job's ``SqlOffsetStore``, and when they were saved, if it is known.

    :param conn_id: Airflow connection of the database, of any type whose hook is a ``DbApiHook`` of the
        provider ``common.sql``, such as ``postgres``.
    :param pipeline: the pipeline name under which the job saves its offsets.
    :param table: name of the table, or ``schema.table``.
    :raises NoCommitError: if no offsets were saved under the name.
    :raises StorageUnavailableError: if the database is down or busy; a retry may succeed.
    :raises UsageError: if the connection does not exist, is not for a database, or the table cannot be read.
    """
    try:
        from sqlalchemy.exc import DBAPIError

        from airflow_kafka_offsets.readings.database_errors import driver_error_text, is_temporary
        from airflow_kafka_offsets.spark.stores import SqlOffsetStore
    except ImportError as error:
        raise without_sqlalchemy(error) from error
    engine = sql_engine(conn_id, "store_conn_id")
    try:
        store = SqlOffsetStore(engine, table)
        offsets, saved_at = store.load(pipeline), store.saved_at(pipeline)
    except DBAPIError as error:
        reason = driver_error_text(error)
        if is_temporary(error):
            raise StorageUnavailableError(
                f"connection {conn_id!r}: table {table!r} could not be read ({reason}): check that the "
                "database is up"
            ) from error
        raise UsageError(
            f"connection {conn_id!r}: table {table!r} cannot be read ({reason}): correct the table's name, "
            "or create it with SqlOffsetStore.create_table()"
        ) from error
    finally:
        engine.dispose()
    if not offsets:
        raise NoCommitError(
            f"connection {conn_id!r}: found no offsets of pipeline {pipeline!r} in table {table!r}; expected "
            "the offsets that the job saves: correct the pipeline's name, or run the job first"
        )
    return offsets, saved_at


def sql_engine(conn_id: str, parameter: str) -> Engine:
    """Return an SQLAlchemy engine for the connection that a parameter names; the caller disposes of it."""
    try:
        hook = BaseHook.get_hook(conn_id)
    except (AirflowException, AttributeError) as error:
        raise UsageError(
            f"connection {conn_id!r} has no usable hook ({error}): correct {parameter_text(parameter)}, add "
            "the connection, or install the provider of its type",
            retriable=isinstance(error, AirflowNotFoundException),
        ) from error
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise UsageError(
            f"connection {conn_id!r}: found {type(hook).__name__}; expected a connection to a database, "
            "whose hook is a DbApiHook of the provider common.sql"
        )
    try:
        from sqlalchemy.exc import NoSuchModuleError

        engine: Engine = hook.get_sqlalchemy_engine()
    # The second error is that of a connection whose SQLAlchemy dialect is not installed.
    except (ImportError, NoSuchModuleError) as error:
        raise without_sqlalchemy(error) from error
    return engine


def without_sqlalchemy(error: Exception) -> SetupError:
    """Return the error if SQLAlchemy or a database's driver cannot be imported."""
    return SetupError(
        f"SQLAlchemy 2 or the database's driver is missing ({error}): pip install "
        "'airflow-kafka-offsets[sql]', and the driver if the message names it"
    )
