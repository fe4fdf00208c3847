"""Functions and classes for Spark jobs. Each name is imported on first use; none needs Airflow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    "spark_py_files": "spark.listener.py_files",
    "starting_offsets": "spark.starting",
}
"""Public name -> the module that defines it."""

__all__ = sorted(_MODULES)  # Type checkers read __init__.pyi.


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airflow_kafka_offsets.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
