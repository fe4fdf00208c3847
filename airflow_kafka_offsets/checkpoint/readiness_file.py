"""Reads and writes the data for a failover beside a checkpoint: ``_kafka_offsets/readiness.json``."""

from __future__ import annotations

from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.readiness import Readiness
from airflow_kafka_offsets.storage import decode

READINESS = f"{DIRECTORY}/readiness.json"


def read_readiness(checkpoint: SparkCheckpoint) -> Readiness:
    """Return the kept data, empty without a file; an OffsetsFormatError if the file is invalid."""
    data = checkpoint.read_file(READINESS)
    name = checkpoint.name(READINESS)
    return Readiness() if data is None else Readiness.parse(decode(data, name), name)


def write_readiness(checkpoint: SparkCheckpoint, readiness: Readiness) -> None:
    """Replace the file."""
    checkpoint.write_file(READINESS, readiness.as_text().encode())
