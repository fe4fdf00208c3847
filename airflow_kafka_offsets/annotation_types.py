"""Classes for annotations: importing these names loads neither librdkafka nor fsspec nor PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint as SparkCheckpoint
    from airflow_kafka_offsets.kafka.cached_reader import CachedReader
    from airflow_kafka_offsets.kafka.client import OffsetsClient as OffsetsClient
    from airflow_kafka_offsets.kafka.record_reads import Record as Record

    OffsetsReader: TypeAlias = OffsetsClient | CachedReader
else:
    DataFrame = OffsetsClient = OffsetsReader = Record = SparkCheckpoint = SparkSession = Any
