"""The file with a checkpoint's readiness data for a failover: ``_kafka_offsets/readiness.json``."""

from __future__ import annotations

from airflow_kafka_offsets.checkpoint.archive_names import DIRECTORY
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.storage import decode

READINESS = f"{DIRECTORY}/readiness.json"


def read_readiness(checkpoint: SparkCheckpoint) -> Readiness:
    """
    Return the readiness data; empty data if there is no file.

    :raises OffsetsFormatError: if the file was changed, or has another version.
    :raises StorageError: if the storage fails.
    """
    data = checkpoint.read_file(READINESS)
    name = checkpoint.name(READINESS)
    return Readiness() if data is None else Readiness.parse(decode(data, name), name)


def write_readiness(checkpoint: SparkCheckpoint, readiness: Readiness) -> None:
    """Replace the file as a whole."""
    checkpoint.write_file(READINESS, readiness.as_text().encode())
