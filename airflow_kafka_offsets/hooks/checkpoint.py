"""Opens checkpoints and their storage through Airflow connections."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fsspec import AbstractFileSystem

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import StorageError, UsageError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.location import check_location, split_scheme
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.storage import note_credentials
from airflow_kafka_offsets.storage_errors import driver_cause, driver_text, storage_error


def spark_checkpoint(location: str, conn_id: str | None = None) -> SparkCheckpoint:
    """
    Return the checkpoint at a location.

    :param location: URI exactly as in the Spark job.
    :param conn_id: Airflow connection of the storage, resolved as in ``ObjectStoragePath``; without it
        fsspec's own defaults (environment, instance profile) are used.
    """
    if not isinstance(location, str):
        raise parameter_error(
            "checkpoint_location",
            f": found {type(location).__name__}; expected text: the location in the Spark job",
        )
    check_location(location)
    return SparkCheckpoint(location, fs=storage_from_connection(location, conn_id))


def storage_from_connection(
    location: str, conn_id: str | None, conn_parameter: str = "checkpoint_conn_id"
) -> AbstractFileSystem | None:
    """
    Return the storage of any URI in it by a connection; ``None`` without one: fsspec then opens the storage.

    The errors are those of :func:`spark_checkpoint`, and name the parameter of the connection.
    """
    if not conn_id:
        return None
    from airflow.sdk import BaseHook
    from airflow.sdk.io import attach

    try:
        # Not every provider requires the connection: amazon's falls back to the machine's credentials.
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise UsageError(
            f"connection {conn_id!r} is not defined: correct {parameter_text(conn_parameter)}, or add a "
            "connection of the storage's type",
            parameter=conn_parameter,
            retriable=True,  # as in KafkaOffsetsHook: the secrets backend may answer again
        ) from error
    source = f"Airflow connection {conn_id!r} ({parameter_text(conn_parameter)})"
    try:
        scheme = split_scheme(location)[0]
        # Airflow keeps each storage by its alias until the process ends, but a connection may change before.
        alias = digest(scheme, conn_id, connection.as_json())
        fs: AbstractFileSystem = attach(scheme, conn_id, alias=alias).fs
    except (ImportError, ValueError) as error:
        scheme = location.partition(":")[0]
        raise StorageError(
            f"no storage for {scheme}:// with connection {conn_id!r} ({driver_text(error)}): install the "
            "Airflow provider of that storage (amazon for s3a, google for gs, microsoft-azure for abfss; "
            "there is no provider for dbfs), correct the connection, or leave "
            f"{parameter_text(conn_parameter)} out"
        ) from driver_cause(error)
    except Exception as error:  # noqa: BLE001  # errors of the provider and of its storage driver
        raise storage_error(error, location, "read", source) from driver_cause(error)
    note_credentials(fs, source)
    return fs
