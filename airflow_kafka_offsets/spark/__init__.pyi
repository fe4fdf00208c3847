from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint as SparkCheckpoint
from airflow_kafka_offsets.model.certificate import Certificate as Certificate
from airflow_kafka_offsets.model.window import OffsetWindow as OffsetWindow
from airflow_kafka_offsets.spark.audit import audit_window as audit_window
from airflow_kafka_offsets.spark.batch import batch_ranges as batch_ranges
from airflow_kafka_offsets.spark.commit import commit_ranges as commit_ranges
from airflow_kafka_offsets.spark.kafka_options import spark_kafka_options as spark_kafka_options
from airflow_kafka_offsets.spark.listener.launcher import launcher_path as launcher_path
from airflow_kafka_offsets.spark.listener.listener import (
    KafkaOffsetCommitterListener as KafkaOffsetCommitterListener,
)
from airflow_kafka_offsets.spark.listener.listener import committing as committing
from airflow_kafka_offsets.spark.listener.py_files import spark_py_files as spark_py_files
from airflow_kafka_offsets.spark.names import pipeline_names as pipeline_names
from airflow_kafka_offsets.spark.read import read_window as read_window
from airflow_kafka_offsets.spark.read import reading_window as reading_window
from airflow_kafka_offsets.spark.starting import starting_offsets as starting_offsets
from airflow_kafka_offsets.spark.stores import SqlOffsetStore as SqlOffsetStore

__all__: list[str]
