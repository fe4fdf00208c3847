"""Functions and classes for Spark jobs. Each name is imported on first use; none needs Airflow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.model.certificate import Certificate
    from airflow_kafka_offsets.model.window import OffsetWindow
    from airflow_kafka_offsets.spark.audit import audit_window
    from airflow_kafka_offsets.spark.batch import batch_ranges
    from airflow_kafka_offsets.spark.commit import commit_ranges
    from airflow_kafka_offsets.spark.kafka_options import spark_kafka_options
    from airflow_kafka_offsets.spark.listener.launcher import launcher_path, spark_py_files
    from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener, committing
    from airflow_kafka_offsets.spark.names import pipeline_names
    from airflow_kafka_offsets.spark.read import read_window, reading_window
    from airflow_kafka_offsets.spark.starting import starting_offsets
    from airflow_kafka_offsets.spark.stores import SqlOffsetStore

__all__ = [
    "Certificate",
    "KafkaOffsetCommitterListener",
    "OffsetWindow",
    "SparkCheckpoint",
    "SqlOffsetStore",
    "audit_window",
    "batch_ranges",
    "commit_ranges",
    "committing",
    "launcher_path",
    "pipeline_names",
    "read_window",
    "reading_window",
    "spark_kafka_options",
    "spark_py_files",
    "starting_offsets",
]

_MODULES = {
    "Certificate": "model.certificate",
    "KafkaOffsetCommitterListener": "spark.listener.listener",
    "OffsetWindow": "model.window",
    "SparkCheckpoint": "checkpoint.reader",
    "SqlOffsetStore": "spark.stores",
    "audit_window": "spark.audit",
    "batch_ranges": "spark.batch",
    "commit_ranges": "spark.commit",
    "committing": "spark.listener.listener",
    "launcher_path": "spark.listener.launcher",
    "pipeline_names": "spark.names",
    "read_window": "spark.read",
    "reading_window": "spark.read",
    "spark_kafka_options": "spark.kafka_options",
    "spark_py_files": "spark.listener.launcher",
    "starting_offsets": "spark.starting",
}


# A type checker would accept every name as an export.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"airflow_kafka_offsets.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
