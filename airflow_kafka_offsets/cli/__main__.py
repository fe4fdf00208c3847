"""Runs the command line as ``python -m airflow_kafka_offsets.cli``."""

from __future__ import annotations

from airflow_kafka_offsets.cli import main

main()
