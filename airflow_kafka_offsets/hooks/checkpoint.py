"""How does a task get at a checkpoint on storage that an Airflow connection describes?"""

from __future__ import annotations

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError
from airflow_kafka_offsets.pipeline import check_location


def spark_checkpoint(location: str, conn_id: str | None = None) -> SparkCheckpoint:
    """
    Return the checkpoint at a location.

    :param location: URI exactly as the Spark job has it.
    :param conn_id: Airflow connection of the storage, resolved by ``ObjectStoragePath``; without it
        fsspec's own defaults (environment, instance profile) are used.
    :raises CheckpointError: if no installed provider knows the storage.
    """
    check_location(location)
    if not conn_id:
        return SparkCheckpoint(location)
    from airflow.sdk import ObjectStoragePath

    try:
        fs = ObjectStoragePath(location, conn_id=conn_id).fs
    except (ImportError, ValueError) as error:
        scheme = location.partition(":")[0]
        raise CheckpointError(
            f"no storage for {scheme}:// with connection {conn_id!r} ({error}): install the Airflow provider of that "
            "storage (amazon for s3a, google for gs, microsoft-azure for abfss), or leave checkpoint_conn_id out"
        ) from error
    return SparkCheckpoint(location, fs=fs)
