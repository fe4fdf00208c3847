"""Reads and writes the data for a failover beside a checkpoint: ``_kafka_offsets/readiness.json``."""

from __future__ import annotations

from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.readiness import Readiness

READINESS = f"{DIRECTORY}/readiness.json"


def read_readiness(checkpoint: SparkCheckpoint) -> Readiness:
    """Return the kept data, empty without a file; an OffsetsFormatError if the file is invalid."""
    text = checkpoint.read_text(READINESS)
    return Readiness() if text is None else Readiness.parse(text, checkpoint.name(READINESS))


def write_readiness(checkpoint: SparkCheckpoint, readiness: Readiness) -> None:
    """Replace the file."""
    checkpoint.write_file(READINESS, readiness.as_text().encode())
