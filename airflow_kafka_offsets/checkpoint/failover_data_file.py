"""Reads and writes the data for a failover beside a checkpoint: ``_kafka_offsets/readiness.json``."""

from __future__ import annotations

from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.failover_data import FailoverData

READINESS = f"{DIRECTORY}/readiness.json"


def read_failover_data(checkpoint: SparkCheckpoint) -> FailoverData:
    """Return the kept data, empty without a file; an OffsetsFormatError if the file is invalid."""
    text = checkpoint.read_text(READINESS)
    return FailoverData() if text is None else FailoverData.parse(text, checkpoint.name(READINESS))


def write_failover_data(checkpoint: SparkCheckpoint, data: FailoverData) -> None:
    """Replace the file."""
    checkpoint.write_file(READINESS, data.as_text().encode())
