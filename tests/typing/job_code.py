"""A user's Spark job, as a type checker reads it. Nothing runs it."""

from collections.abc import Mapping
from typing import Any, assert_type

from pyspark.sql import SparkSession
from sqlalchemy import Connection, create_engine

from airflow_kafka_offsets import spark as in_the_job
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.spark import (
    KafkaOffsetCommitterListener,
    OffsetWindow,
    SparkCheckpoint,
    SqlOffsetStore,
    batch_ranges,
    commit_ranges,
    committing,
    launcher_path,
    pipeline_names,
    read_window,
    reading_window,
    spark_kafka_options,
    spark_py_files,
    starting_offsets,
)

in_the_job.read_windows  # type: ignore[attr-defined]


def a_window(spark: SparkSession, text: str) -> None:
    """A batch job over a planned window."""
    window = OffsetWindow.parse(text)
    assert_type(window, OffsetWindow)
    assert_type(window.records, int)
    assert_type(window.start, dict[TopicPartition, int])
    assert_type(window.end, dict[TopicPartition, int])
    assert_type(window.spark_options(), dict[str, str])
    assert_type(window.as_json(), dict[str, Any])
    options = spark_kafka_options({"bootstrap.servers": "kafka:9092"})
    assert_type(options, dict[str, str])
    read_window(spark, window, options, exact_count=True, client_config={"a": "b"}).count()
    with reading_window(spark, {"version": 1}, options) as frame:
        frame.count()
    assert_type(commit_ranges("orders-etl", window, options=options), dict[TopicPartition, int])


def a_stream(spark: SparkSession) -> None:
    """A stream whose group follows it."""
    names = pipeline_names(spark)
    assert_type(names, Mapping[str, Any])
    with committing(spark, group_id=names["group_id"], raise_errors=True, timeout=30) as listener:
        assert_type(listener, KafkaOffsetCommitterListener)
        assert_type(listener.counts.committed, int)
        assert_type(listener.errors, list[KafkaOffsetsError])
        listener.flush(timeout=10)
        listener.raise_errors()
    assert_type(launcher_path(), str)
    assert_type(spark_py_files(), str)


def own_store(spark: SparkSession, connection: Connection, batch_id: int) -> None:
    """Exactly once into a database."""
    store = SqlOffsetStore(create_engine("postgresql://warehouse"), table="offsets")
    ranges = batch_ranges(SparkCheckpoint("s3a://lake/c"), batch_id, source=0, spark=spark)
    assert_type(ranges, dict[TopicPartition, OffsetRange])
    assert_type(store.save(connection, "orders", ranges), bool)
    assert_type(store.load("orders"), dict[TopicPartition, int])
    begin = starting_offsets(store, checkpoint="s3a://lake/c", topics=["orders"], pipeline="orders")
    assert_type(begin, dict[str, str])
    old = SparkCheckpoint("s3a://lake/c")
    assert_type(starting_offsets(old, checkpoint="s3a://lake/d", query_source=0), dict[str, str])
