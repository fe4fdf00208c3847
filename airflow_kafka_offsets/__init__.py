"""Kafka offsets of Spark pipelines, as a first-class thing in an Airflow DAG."""

from __future__ import annotations

__version__ = "0.1.0"
