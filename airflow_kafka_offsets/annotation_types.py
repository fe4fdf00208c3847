"""Classes for annotations: importing these names loads neither librdkafka nor fsspec nor PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint as SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient as OffsetsClient
    from airflow_kafka_offsets.kafka.record_reads import Record as Record
else:
    DataFrame = OffsetsClient = Record = SparkCheckpoint = SparkSession = Any
